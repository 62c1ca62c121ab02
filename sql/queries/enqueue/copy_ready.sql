-- Copy many due jobs into ready, under ids from reserve_jobs. Run by producers, in their own transaction. An
-- empty field is null.
COPY jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload) FROM STDIN (NULL '')
