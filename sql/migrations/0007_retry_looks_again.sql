-- A job may move while we look: from running to scheduled once scheduled has been looked at, or to history once history has. Who looked
-- once found it nowhere, said that there is no such job, and ran nothing again. As cancel does since 0004, retry looks again.
CREATE OR REPLACE FUNCTION jobherd.retry(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at, current_date + 30, error_code, error, traceback, ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, last_error, priority, max_attempts, queue, kind, payload)
            SELECT id, created_at, now(), nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    RETURN answer;
END $$;
