-- A job that is moved to a time before it was enqueued comes back like any other: the index of those that came back asks for run_at > created_at, and
-- under an old snapshot one that was not in it waited for the next whole walk, up to 15 s.
CREATE OR REPLACE FUNCTION jobherd.reschedule(job_id bigint, run_at timestamp with time zone, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS text
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
            DELETE FROM jobherd.scheduled s WHERE s.id = job_id
            RETURNING s.id, s.created_at, s.run_at, s.good_until, s.timeout, s.last_error, s.priority, s.attempts, s.max_attempts, s.crashes, s.alone,
                      s.queue, s.kind, s.payload, s.extras INTO job;
        END IF;
        IF job.id IS NOT NULL THEN
            job.run_at := due;
            -- It is put in anew and not updated: who sleeps until the first one is due hears of rows that arrive.
            IF due > clock_timestamp() THEN
                INSERT INTO jobherd.scheduled (id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                                               queue, kind, payload, extras) SELECT job.*;
                answer := 'scheduled';
            ELSE
                job.run_at := greatest(due, job.created_at + interval '1 microsecond');  -- see the index ready_came_back
                INSERT INTO jobherd.ready SELECT job.*;
                answer := 'ready';
            END IF;
            PERFORM jobherd.note_unless_noted(actor, 'reschedule', jsonb_build_object('job', job_id, 'run_at', due), why);
            RETURN CASE WHEN job.attempts > 0 THEN 'retrying' ELSE answer END;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;
    END LOOP;
    RETURN answer;
END $$;
