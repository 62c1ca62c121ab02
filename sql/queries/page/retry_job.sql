-- Run a job again; answers where it is now. Null if there is none.
SELECT jobherd.retry_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
