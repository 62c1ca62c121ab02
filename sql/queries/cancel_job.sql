-- Cancel a job. Returns what happened.
SELECT jobherd.cancel(%(id)s::bigint) AS answer
