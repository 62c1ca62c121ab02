-- The attempt that a retry puts away is kept for as long as the kind says, as all others are, and not for thirty days: errors of a kind that keeps them for
-- one were there for a month, and of one that keeps them for a year they were gone before the job.
CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       current_date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30), error_code, error, traceback,
                       ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;
