-- Put many jobs that are due into ready, under ids from reserve_jobs; run by producers, in their own transaction. What is empty is null.
COPY jobherd.ready (id, run_at, good_until, timeout, priority, max_attempts, queue, kind, payload) FROM STDIN (NULL '')
