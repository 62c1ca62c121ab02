-- Actions of users on single jobs: cancel, retry, reprioritize, reschedule. Each function searches the job
-- up to three times: a job may move between two of its statements, for example from `running` to
-- `scheduled`. After one search the job would be reported as missing, and nothing would be done.

CREATE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL)
RETURNS text
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
        ), parked AS (
            DELETE FROM jobherd.parked WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM parked UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts,
                                     crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(),
               (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout,
               'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', 'jobherd.' || ' ' || job_id || '=' || answer);
        ELSE
            -- `running` is as small as the fleet, so the claim is found through its jobs. Its row is not locked.
            IF EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE j.id = job_id) THEN
                INSERT INTO jobherd.cancels (job)
                SELECT job_id WHERE NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = job_id)
                ON CONFLICT DO NOTHING;
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
COMMENT ON FUNCTION jobherd.cancel_as(bigint, text, text) IS
    'Cancels a job, with an audit entry of actor and reason. Returns ''cancelled'' (it waited, and has '
    'finished now), ''cancelling'' (it runs; its worker is told), its state if it had finished before, or '
    'null if there is no such job.';

CREATE FUNCTION jobherd.cancel(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$ SELECT jobherd.cancel_as(job_id, NULL) $$;
COMMENT ON FUNCTION jobherd.cancel(bigint) IS 'Cancels a job: cancel_as without actor and reason.';

-- `cancel` for a tenant, which may write none of the tables. A job of another tenant counts as missing.
CREATE FUNCTION jobherd.cancel_own(job_id bigint)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = job_id AND j.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.cancel(job_id);
    END IF;
    RETURN NULL;
END $$;

-- A retry deletes the request to cancel: it was about the earlier run. The last attempt is kept as
-- long as the kind says, like all others.
CREATE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    later  jobherd.ready;
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.scheduled s WHERE s.id = job_id RETURNING s.* INTO later;
        IF FOUND THEN
            later.run_at := now();
            INSERT INTO jobherd.ready SELECT later.* RETURNING 'ready' INTO answer;
        END IF;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on,
                                              error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       (now() AT TIME ZONE 'UTC')::date
                       + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30),
                       error_code, error, traceback, ran_on, usage, post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue,
                                       kind, payload, extras)
            SELECT id, created_at, now(), timeout,
                   nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF did THEN
            DELETE FROM jobherd.cancels WHERE job = job_id;  -- a request about the earlier run
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.waiting WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r
             WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.retry_as(bigint, text, text) IS
    'Runs a job again: at once if it waits for its time, from the start if it has finished. It keeps its '
    'id, its history and its timeout; its counts begin again. Returns ''ready'', ''running'' (nothing to '
    'do), or null if there is no such job.';

CREATE FUNCTION jobherd.retry(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$ SELECT jobherd.retry_as(job_id, NULL) $$;
COMMENT ON FUNCTION jobherd.retry(bigint) IS 'Runs a job again: retry_as without actor and reason.';

-- `retry` for a tenant, which may write none of the tables. A job of another tenant counts as missing.
CREATE FUNCTION jobherd.retry_own(job_id bigint)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = job_id AND j.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.retry(job_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION jobherd.retry_edited(
    job_id bigint, payload jsonb, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    old    jobherd.history;
    number bigint;
BEGIN
    SELECT * INTO old FROM jobherd.history h WHERE h.id = job_id ORDER BY h.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    number := jobherd.enqueue_with(old.kind, retry_edited.payload, jsonb_strip_nulls(jsonb_build_object(
        'queue', old.queue, 'priority', old.priority, 'max_attempts', old.max_attempts, 'timeout', old.timeout,
        'tenant', (old.extras).tenant,
        'webhook', (old.extras).webhook, 'parent_id', old.id, 'traceparent', (old.extras).traceparent)),
        (old.extras).payload_bytes);
    INSERT INTO jobherd.demands (job, cost) SELECT number, d.cost FROM jobherd.demands d WHERE d.job = old.id;
    PERFORM jobherd.note_unless_noted(actor, 'edit', jsonb_build_object('job', old.id, 'new', number), reason);
    RETURN number;
END $$;
COMMENT ON FUNCTION jobherd.retry_edited(bigint, jsonb, text, text) IS
    'Runs a finished job again with another payload, as a new job. The old job stays as it is and is the '
    'parent of the new one. Returns the new id, or null if there is no such finished job. Not for '
    'tenants.';

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
    'it waits. Otherwise returns the state of the job, or null if there is no such job.';

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
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;
    END LOOP;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.reschedule(bigint, timestamptz, text, text) IS
    'Changes the time of a waiting job, and returns the state in which it waits. A time that has passed '
    'makes it ready. Otherwise returns the state of the job, or null if there is no such job.';
