-- Run a job again, and write the actor and the reason to the audit log. Returns where the job is now.
SELECT jobherd.retry_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
