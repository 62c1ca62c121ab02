-- Cancel a job; answers what became of that.
SELECT jobherd.cancel(%(id)s::bigint) AS answer
