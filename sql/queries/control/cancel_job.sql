-- Cancel a job, and write the actor and the reason to the audit log. Returns what happened.
SELECT jobherd.cancel_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
