-- Notifications. A producer notifies only while a worker is idle, and a settlement only while a
-- client waits for the job. Cost: a transaction that notifies holds a lock of the whole server
-- through its commit. Eight producers that committed one by one made 3,800 jobs/s with
-- notifications and 14,600 without.
--
-- Advisory locks say which process must be notified. Rows cannot: a long transaction, or one under
-- REPEATABLE READ, sees old rows, and rows of a dead supervisor stay.
--
-- Class 1785684584 ("jobh"), for idle workers:
--   keys 1 to 16, the sleep keys: a supervisor with idle workers holds all of them, shared, for its
--     session (wake/enable_notify).
--   key 0, the gate: a transaction that commits new jobs holds it, shared, from before it tests a
--     sleep key until its jobs are visible.
-- A supervisor takes the sleep keys, then finds the transactions in the gate
-- (wake/find_committing_producers) and waits for them, then lets its workers claim once. A
-- transaction that entered the gate later finds the sleep keys taken, and notifies. What the others
-- have committed, the claim sees. tests/models/wake.pml proves this, and that each step is needed.
--
-- Class 1785684585 ("jobi"), for clients that wait for jobs:
--   keys 1 to 4: a client waits for some job. A statement that finishes jobs tests one of them.
--   keys 64 to 127: a client waits for a job whose id has these lowest six bits.
-- A client listens, takes its keys (wake/announce_wait), and only then queries its jobs. For running
-- ones it waits for settlements in progress (wake/wait_for_settlements). A settlement tests the keys
-- after it has locked the row of the claim. So it sees the keys, or the client sees its result.
--
-- To test a key is to take it exclusively and release it at once, in one expression: a
-- cancellation in between would leave the key to the session. There are several keys, or sessions
-- that test at the same time would take each other for idle workers or waiting clients.

-- Notifies, and returns true, unless the server's queue of notifications is nearly full. That queue
-- is shared by all databases, and a client that listens and stays in a transaction fills it. When it
-- is full, a transaction that notifies cannot commit: no outcome and no renewal of a lease. Every
-- receiver also queries from time to time, so a lost notification only delays. One expression, so
-- that PostgreSQL can inline it.
CREATE FUNCTION jobherd.notify(channel text, word text)
RETURNS boolean
LANGUAGE sql
AS $$
    SELECT CASE WHEN pg_notification_queue_usage() < 0.9 THEN pg_notify(channel, word) IS NOT NULL ELSE false END
$$;

-- Trigger, at the commit of a transaction that has inserted into `ready`. It does not wait: a session
-- that cannot enter the gate notifies. A supervisor that releases jobs in the session that holds its
-- own sleep keys finds no conflict there, so the setting jobherd.sleeps says that it is idle. It
-- calls none of our functions: before PostgreSQL 18 a deferred trigger runs as the role that
-- commits. That may be the caller of an application's SECURITY DEFINER function, with no rights here.
CREATE FUNCTION jobherd.wake_sleepers()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('jobherd.sleeps', true) = 'yes'
       OR (CASE WHEN NOT pg_try_advisory_xact_lock_shared(1785684584, 0) THEN true
             WHEN pg_try_advisory_lock(1785684584, 1 + (pg_backend_pid() & 15))
             THEN NOT pg_advisory_unlock(1785684584, 1 + (pg_backend_pid() & 15))
             ELSE true END) THEN
        PERFORM pg_notify('jobherd_jobs', NEW.queue) WHERE pg_notification_queue_usage() < 0.9;
    END IF;
    RETURN NULL;
END $$;

-- The condition is evaluated for each row, and notes the row's queue for the rest of the
-- transaction. So of 100,000 rows of one queue, one waits for the commit. A rolled back savepoint
-- also rolls the note back. The note is short, because the server reads it for each statement: a
-- list of all queues doubled the cost of a single insert.
CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON jobherd.ready DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (CASE WHEN current_setting('jobherd.called', true) = NEW.queue THEN false
               ELSE set_config('jobherd.called', NEW.queue, true) IS NOT NULL END)
    EXECUTE FUNCTION jobherd.wake_sleepers();

-- Trigger, at the commit of a transaction that has inserted into `scheduled`. Maintenance processes
-- set a timer for the earliest job. Only a job that is due before all others changes it. Checked at
-- the commit: the job that was earlier may have become due meanwhile. A job that is due within 200
-- ms does not count as the earlier one: a maintenance process may query before this commit is
-- visible. A transaction with an older snapshot does not see the others, so it always notifies. As
-- the owner: the role that commits may not read the table.
CREATE FUNCTION jobherd.wake_scheduled()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    soon CONSTANT timestamptz := clock_timestamp() + interval '200 ms';
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
       OR ((SELECT s.run_at FROM jobherd.scheduled s WHERE s.run_at > soon
            ORDER BY s.run_at LIMIT 1) < NEW.run_at) IS NOT TRUE THEN
        PERFORM jobherd.notify('jobherd_jobs', '@due');
    END IF;
    RETURN NULL;
END $$;

-- Once for each transaction, and again for a job that is due before all noted ones.
CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON jobherd.scheduled DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (CASE WHEN extract(epoch FROM NEW.run_at) >= nullif(current_setting('jobherd.due', true), '')::numeric
               THEN false
               ELSE set_config('jobherd.due', extract(epoch FROM NEW.run_at)::text, true) IS NOT NULL END)
    EXECUTE FUNCTION jobherd.wake_scheduled();

-- Notifies idle workers that there may be work in a queue, or in any ('*'). Run by workers, and by
-- the trigger on `running`.
CREATE FUNCTION jobherd.tell_sleepers(queue text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('jobherd.sleeps', true) = 'yes'
       OR (CASE WHEN NOT pg_try_advisory_xact_lock_shared(1785684584, 0) THEN true
             WHEN pg_try_advisory_lock(1785684584, 1 + (pg_backend_pid() & 15))
             THEN NOT pg_advisory_unlock(1785684584, 1 + (pg_backend_pid() & 15))
             ELSE true END) THEN
        PERFORM jobherd.notify('jobherd_jobs', queue);
    END IF;
END $$;

-- Notifies the clients that wait for some of these jobs. ended: words of an id, = and a state. Each
-- message begins with the schema's name: the channel is one for the whole database. Returns true,
-- so that it can be used in a condition.
CREATE FUNCTION jobherd.tell_waiters(ended text[])
RETURNS boolean
LANGUAGE sql
AS $$
    -- 200 words a message: with the longest ids and states it fits into 8,000 bytes.
    SELECT count(*) >= 0
      FROM (SELECT jobherd.notify('jobherd_done', 'jobherd.' || ' ' || string_agg(word, ' '))
              FROM (SELECT word, (row_number() OVER () - 1) / 200 AS part
                      FROM unnest(ended) AS word
                     WHERE split_part(word, '=', 1)::bigint & 63 IN (
                           SELECT key FROM (SELECT DISTINCT split_part(word, '=', 1)::bigint & 63 AS key
                                              FROM unnest(ended) AS word) AS one
                            WHERE CASE WHEN pg_try_advisory_lock(1785684585, 64 + key::integer)
                                       THEN NOT pg_advisory_unlock(1785684585, 64 + key::integer)
                                       ELSE true END)) AS told
             GROUP BY part) AS sent
$$;

-- Waits for settlements of these jobs that are in progress. The lock conflicts only with those that
-- delete the row, and needs the right to write it, so it is taken as the owner. It is released at
-- once: the exception rolls the block back. Otherwise a role that may only read could hold it in its
-- transaction, and no outcome of these claims could be written.
CREATE FUNCTION jobherd.meet_settlements(ids bigint[])
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = ANY (ids)) FOR KEY SHARE;
    RAISE EXCEPTION USING ERRCODE = 'JHMET';
EXCEPTION
    WHEN SQLSTATE 'JHMET' THEN NULL;
END $$;
