-- Run a job again. Returns where it is now.
SELECT jobherd.retry(%(id)s::bigint) AS answer
