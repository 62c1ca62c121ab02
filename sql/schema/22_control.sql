-- Actions of users on single jobs: cancel and retry. Each function searches the job up to three times: a
-- job may move between two of its statements, for example from `running` to `scheduled`. After one search
-- the job would be reported as missing, and nothing would be done.

-- A canceled member of a flow keeps its edges for a retry of the flow.
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
        ), blocked AS (
            DELETE FROM jobherd.blocked WHERE id = job_id RETURNING *
        ), untied AS (
            DELETE FROM jobherd.edges WHERE downstream = job_id AND flow IS NULL
        ), unknown AS (
            UPDATE jobherd.edges SET state = 'unknown', marked = true
             WHERE downstream = job_id AND flow IS NOT NULL AND state IS NULL AND EXISTS (SELECT FROM blocked)
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM parked UNION ALL SELECT * FROM later UNION ALL SELECT * FROM blocked
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
    'null if the job does not exist.';

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
-- long as the kind says, like all others. The job gets its lane again, from its partition.
CREATE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    later  jobherd.ready;
    answer text;
    did    boolean := false;
    key    bytea;
    what   text;
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
            SELECT (h.extras).unique_key, h.kind INTO key, what FROM jobherd.history h WHERE h.id = job_id
             ORDER BY h.finished_at DESC LIMIT 1;
            IF key IS NOT NULL AND jobherd.take_key(key, job_id, what) <> job_id THEN
                RETURN 'conflict';
            END IF;
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
            ), counted AS (  -- the flow of a member that runs again waits for it, unless it has ended
                INSERT INTO jobherd.ends (flow, job, state, delta)
                SELECT (extras).flow, id, CASE WHEN error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE state END, 1
                  FROM over WHERE (extras).flow > 0
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue,
                                       kind, payload, extras, lane)
            SELECT id, created_at, now(), timeout,
                   nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
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
            SELECT 'blocked' INTO answer FROM jobherd.blocked WHERE id = job_id;
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
    'id, its history and its timeout; its counts begin again. Returns ''ready'', ''running'' or ''blocked'' (nothing to '
    'do), ''conflict'' (another live job holds its key), or null if the job does not exist.';

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

-- A retry with another payload keeps a partition that the kind does not take from the payload.
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
        'tenant', (old.extras).tenant, 'partition',
        CASE WHEN NOT EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = old.kind AND k.partition_by IS NOT NULL)
             THEN (old.extras).partition END,
        'webhook', (old.extras).webhook, 'parent_id', old.id, 'traceparent', (old.extras).traceparent)),
        (old.extras).payload_bytes);
    INSERT INTO jobherd.demands (job, cost) SELECT number, d.cost FROM jobherd.demands d WHERE d.job = old.id;
    PERFORM jobherd.note_unless_noted(actor, 'edit', jsonb_build_object('job', old.id, 'new', number), reason);
    RETURN number;
END $$;
COMMENT ON FUNCTION jobherd.retry_edited(bigint, jsonb, text, text) IS
    'Runs a finished job again with another payload, as a new job. The old job stays as it is and is the '
    'parent of the new one. Returns the new id, or null if the job has not finished or does not exist. Not for '
    'tenants.';
