-- A job is notified only while somebody sleeps. A transaction that notifies holds a lock of the whole database server through its commit:
-- eight producers that commit one by one made 3,800 jobs/s with it and 14,600 without.
--
-- Two kinds of advisory locks say who must be told, and no row does: what a long transaction or one under REPEATABLE READ sees of rows is
-- old, and what a dead supervisor has written stays. Their class is 1785684584 ("jobh").
--   sleep, keys 1 to 16: a supervisor whose children may be idle holds them all, shared, for its session.
--   gate, key 0: whoever commits new jobs holds it, shared, from before its look at a sleep key until its jobs are visible.
-- A supervisor takes the sleep keys, then looks who is in the gate and waits until these have left, then lets its children claim once
-- (supervisor/database/notify_mode.py). Whoever entered the gate after that look finds the sleep keys taken and notifies; what the others have
-- committed, the claim sees. tests/models/wake.pml proves it, and that each of these steps is needed.
DROP TRIGGER wake ON jobherd.ready;
DROP FUNCTION jobherd.wake_ready();

-- Runs at commit. To look at a sleep key is to take it alone and let go of it at once. That stands in one
-- expression, where no cancellation can come between: a session would keep the key. Sixteen keys, or those who look at the same time
-- would take each other for sleepers. Nobody waits here: whoever cannot enter the gate notifies. A supervisor gives jobs back through
-- the session that holds its own keys, which are no hindrance to itself: it says in a setting of the session that it sleeps.
CREATE FUNCTION jobherd.wake_sleepers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('jobherd.sleeps', true) = 'yes' OR (CASE WHEN NOT pg_try_advisory_xact_lock_shared(1785684584, 0) THEN true
             WHEN pg_try_advisory_lock(1785684584, 1 + (pg_backend_pid() & 15))
             THEN NOT pg_advisory_unlock(1785684584, 1 + (pg_backend_pid() & 15))
             ELSE true END) THEN
        PERFORM pg_notify('jobherd_jobs', NEW.queue);
    END IF;
    RETURN NULL;
END $$;

-- The condition is looked at when a row is inserted, and notes its queue: of a hundred thousand rows of a queue one waits for the commit
-- (rows that change queues all the time wait, and pay, each for itself; the server sends what is the same once). The note ends with the
-- transaction, and with the savepoint whose rows are rolled back. It is short because the server reads it anew for each statement: a
-- list of all queues so far cost a single insert twice as much.
CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON jobherd.ready DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (CASE WHEN current_setting('jobherd.called', true) = NEW.queue THEN false
               ELSE set_config('jobherd.called', NEW.queue, true) IS NOT NULL END)
    EXECUTE FUNCTION jobherd.wake_sleepers();
