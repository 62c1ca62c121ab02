-- Before PostgreSQL 18 what is deferred to the commit runs as whoever commits, and not as whoever has enqueued: the caller of a SECURITY DEFINER
-- function of the application's, who may do nothing in this schema, was refused its commit whenever somebody slept. So it calls nothing of ours.
CREATE OR REPLACE FUNCTION jobherd.wake_sleepers() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('jobherd.sleeps', true) = 'yes' OR (CASE WHEN NOT pg_try_advisory_xact_lock_shared(1785684584, 0) THEN true
             WHEN pg_try_advisory_lock(1785684584, 1 + (pg_backend_pid() & 15))
             THEN NOT pg_advisory_unlock(1785684584, 1 + (pg_backend_pid() & 15))
             ELSE true END) THEN
        PERFORM pg_notify('jobherd_jobs', NEW.queue) WHERE pg_notification_queue_usage() < 0.9;
    END IF;
    RETURN NULL;
END $$;
