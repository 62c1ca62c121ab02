-- Cancel a job; answers what became of that. Null if there is none.
SELECT jobherd.cancel_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
