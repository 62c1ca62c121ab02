-- Run a job again; answers where it is now.
SELECT jobherd.retry(%(id)s::bigint) AS answer
