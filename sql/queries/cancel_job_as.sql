-- Cancel a job, and note who did and why; answers what became of that.
SELECT jobherd.cancel_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
