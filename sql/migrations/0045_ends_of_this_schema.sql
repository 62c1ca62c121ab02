-- The words of ends say whose they are: the channel is one for the whole database, and a waiter in one schema took what had become of the job of the same number
-- in another for its own, if nothing was kept of that. Older waiters pass over the word with the dot.
CREATE OR REPLACE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', 'jobherd.' || ' ' || job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                did := true;
                answer := 'cancelling';
                PERFORM jobherd.notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.tell_waiters(ended text[]) RETURNS boolean
    LANGUAGE sql
    AS $$
    -- Two hundred to a message: the longest ids and states fit.
    SELECT count(*) >= 0
      FROM (SELECT jobherd.notify('jobherd_done', 'jobherd.' || ' ' || string_agg(word, ' '))
              FROM (SELECT word, (row_number() OVER () - 1) / 200 AS part
                      FROM unnest(ended) AS word
                     WHERE split_part(word, '=', 1)::bigint & 63 IN (
                           SELECT key FROM (SELECT DISTINCT split_part(word, '=', 1)::bigint & 63 AS key FROM unnest(ended) AS word) AS one
                            WHERE CASE WHEN pg_try_advisory_lock(1785684585, 64 + key::integer)
                                       THEN NOT pg_advisory_unlock(1785684585, 64 + key::integer) ELSE true END)) AS told
             GROUP BY part) AS sent
$$;
