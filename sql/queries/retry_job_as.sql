-- Run a job again, and note who said so and why; answers where it is now.
SELECT jobherd.retry_as(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
