-- Delete a job of the past; answers 'deleted', or where it is if it is none of the past. Null if there is none.
SELECT jobherd.delete(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
