-- Changes of waiting jobs by users: their priority, and the time at which they are due. Each function searches the
-- job up to three times, as those of 22_control.sql do.

CREATE FUNCTION jobherd.reprioritize(
    job_id bigint, priority integer, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    wanted CONSTANT integer := priority;
    why    CONSTANT text := reason;
    answer text;
    before smallint;
BEGIN
    IF wanted IS NULL OR wanted NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'jobherd.reprioritize: priority % is not a whole number from -32768 to 32767',
            coalesce(wanted::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The lower, the sooner; 0 is the default.';
    END IF;
    FOR look IN 1..3 LOOP
        SELECT r.priority INTO before FROM jobherd.ready r WHERE r.id = job_id FOR UPDATE;
        IF FOUND THEN
            UPDATE jobherd.ready r SET priority = wanted WHERE r.id = job_id
            RETURNING CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END INTO answer;
        END IF;
        IF answer IS NULL THEN
            SELECT p.priority INTO before FROM jobherd.parked p WHERE p.id = job_id FOR UPDATE;
            IF FOUND THEN
                UPDATE jobherd.parked p SET priority = wanted WHERE p.id = job_id
                RETURNING CASE WHEN p.attempts > 0 THEN 'retrying' ELSE 'ready' END INTO answer;
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT s.priority INTO before FROM jobherd.scheduled s WHERE s.id = job_id FOR UPDATE;
            IF FOUND THEN
                UPDATE jobherd.scheduled s SET priority = wanted WHERE s.id = job_id
                RETURNING CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END INTO answer;
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT b.priority INTO before FROM jobherd.blocked b WHERE b.id = job_id FOR UPDATE;
            IF FOUND THEN
                UPDATE jobherd.blocked b SET priority = wanted WHERE b.id = job_id RETURNING 'blocked' INTO answer;
            END IF;
        END IF;
        IF answer IS NOT NULL THEN
            PERFORM jobherd.note_unless_noted(actor, 'reprioritize', 
                jsonb_build_object('job', job_id, 'priority', wanted, 'before', before), why);
            RETURN answer;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;  -- it has moved to another table meanwhile
    END LOOP;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.reprioritize(bigint, integer, text, text) IS
    'Changes the priority of a waiting job, for all its later attempts, and returns the state in which '
    'it waits. Otherwise returns the state of the job, or null if the job does not exist.';

CREATE FUNCTION jobherd.reschedule(
    job_id bigint, run_at timestamptz, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    due    CONSTANT timestamptz := run_at;
    why    CONSTANT text := reason;
    job    jobherd.ready;
    answer text;
BEGIN
    IF due IS NULL OR NOT isfinite(due) OR due <= '1900-01-01 00:00Z' OR due >= '9000-01-01 00:00Z' THEN
        RAISE EXCEPTION 'jobherd.reschedule: run_at % is not a time from 1900 to 9000', coalesce(due::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example now() + interval ''10 minutes''.';
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.ready r WHERE r.id = job_id RETURNING r.* INTO job;
        IF NOT FOUND THEN
            DELETE FROM jobherd.parked p WHERE p.id = job_id RETURNING p.* INTO job;
        END IF;
        IF NOT FOUND THEN
            DELETE FROM jobherd.scheduled s WHERE s.id = job_id
            RETURNING s.* INTO job;
        END IF;
        IF job.id IS NOT NULL THEN
            job.run_at := due;
            -- Inserted again, not updated: the trigger that moves maintenance processes' timers fires for inserts.
            IF due > clock_timestamp() THEN
                INSERT INTO jobherd.scheduled SELECT job.*;
                answer := 'scheduled';
            ELSE
                -- see the index ready_came_back
                job.run_at := greatest(due, job.created_at + interval '1 microsecond');
                INSERT INTO jobherd.ready SELECT job.*;
                answer := 'ready';
            END IF;
            PERFORM jobherd.note_unless_noted(actor, 'reschedule', jsonb_build_object('job', job_id, 'run_at', due),
                                              why);
            RETURN CASE WHEN job.attempts > 0 THEN 'retrying' ELSE answer END;
        END IF;
        UPDATE jobherd.blocked b SET run_at = due WHERE b.id = job_id;
        IF FOUND THEN
            PERFORM jobherd.note_unless_noted(actor, 'reschedule', jsonb_build_object('job', job_id, 'run_at', due), why);
            RETURN 'blocked';
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;
    END LOOP;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.reschedule(bigint, timestamptz, text, text) IS
    'Changes the time of a waiting job, and returns the state in which it waits. A time that has passed '
    'makes it ready. Otherwise returns the state of the job, or null if the job does not exist.';
