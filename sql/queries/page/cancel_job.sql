-- Cancel a job. Returns what happened. Null if the job does not exist.
SELECT jobherd.cancel_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
