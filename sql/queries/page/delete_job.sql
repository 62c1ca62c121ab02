-- Delete a finished job. Returns 'deleted', or where the job is if it is not finished. Null if it does not
-- exist.
SELECT jobherd.delete(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
