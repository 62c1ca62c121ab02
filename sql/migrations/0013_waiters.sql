-- Whoever waits for the end of a job is told, and while nobody waits, nobody is notified: a transaction that notifies holds a lock of the
-- whole server through its commit (0006).
--
-- Who waits says so by advisory locks that its session holds, shared. Their class is 1785684585 ("jobi").
--   keys 1 to 4: somebody waits for something. Whatever ends jobs looks at one of them, once a statement: at four, or those who look at
--     the same time would take each other for waiters.
--   keys 64 to 127: somebody waits for a job whose id ends in these six bits. Only jobs under a key that is taken are told of.
-- To look at a key is to take it alone and let go of it at once, in one expression.
--
-- A waiter listens, takes its keys, and only then looks at its jobs; of those that run it locks the row of the claim (meet_settlements.sql).
-- A settlement looks at the keys after it has locked that row. So either it sees the keys, or the waiter waits for its commit and sees
-- what it has written.
-- Words of `ended`: an id, = and a state. Returns true, so that it can stand in a condition.
CREATE FUNCTION jobherd.tell_waiters(ended text[]) RETURNS boolean LANGUAGE sql AS $$
    -- Two hundred to a message: the longest ids and states fit.
    SELECT count(*) >= 0
      FROM (SELECT pg_notify('jobherd_done', string_agg(word, ' '))
              FROM (SELECT word, (row_number() OVER () - 1) / 200 AS part
                      FROM unnest(ended) AS word
                     WHERE split_part(word, '=', 1)::bigint & 63 IN (
                           SELECT key FROM (SELECT DISTINCT split_part(word, '=', 1)::bigint & 63 AS key FROM unnest(ended) AS word) AS one
                            WHERE CASE WHEN pg_try_advisory_lock(1785684585, 64 + key::integer)
                                       THEN NOT pg_advisory_unlock(1785684585, 64 + key::integer) ELSE true END)) AS told
             GROUP BY part) AS sent
$$;

-- A job that waited is over at once, and always told of: who has looked before it was locked could not know.
CREATE OR REPLACE FUNCTION jobherd.cancel(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), current_date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            PERFORM pg_notify('jobherd_done', job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                answer := 'cancelling';
                PERFORM pg_notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    RETURN answer;
END $$;

-- To delete a job from the view is to cancel it; the record of one that is over goes, with its attempts. Whoever deletes and whoever
-- cancels may thus do it at the same moment: one of them finds it over.
CREATE FUNCTION jobherd.delete_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.finished_at IS NULL THEN
        PERFORM jobherd.cancel(OLD.id);
    ELSE
        DELETE FROM jobherd.history WHERE id = OLD.id;
        DELETE FROM jobherd.attempts WHERE job = OLD.id;
    END IF;
    RETURN OLD;
END $$;

CREATE TRIGGER delete_job INSTEAD OF DELETE ON jobherd.jobs FOR EACH ROW EXECUTE FUNCTION jobherd.delete_job();
