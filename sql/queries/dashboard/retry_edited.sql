-- Run a finished job again with another payload. Returns the new job's id, or null if there is no such finished
-- job.
SELECT jobherd.retry_edited(%(id)s::bigint, %(payload)s::jsonb, %(actor)s::text, %(reason)s::text) AS answer
