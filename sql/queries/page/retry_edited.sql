-- Run a job of the past again with another payload; answers the new job's id, or null if there is no such job of the past.
SELECT jobherd.retry_edited(%(id)s::bigint, %(payload)s::jsonb, %(actor)s::text, %(reason)s::text) AS answer
