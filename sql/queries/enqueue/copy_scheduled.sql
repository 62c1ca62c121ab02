-- Copy many jobs that are not due yet into scheduled, under ids from reserve_jobs. Run by producers, in their
-- own transaction. An empty field is null.
COPY jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload) FROM STDIN (NULL '')
