-- Run a job again. Returns where it is now. Null if it does not exist.
SELECT jobherd.retry_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
