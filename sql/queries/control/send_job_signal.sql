-- Send a signal to one job. Returns its id, or null if the job does not exist.
SELECT jobherd.signal_job(%(id)s::bigint, %(name)s::text, %(payload)s::jsonb) AS id
