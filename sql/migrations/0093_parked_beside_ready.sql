-- Parked jobs have a table beside `ready`, not below it: a statement that forgot ONLY worked on both, and a deletion by
-- ctid, which is a position in one table, could delete another job. The table keeps its rows, columns, constraints
-- and indexes. A statement that means both tables reads the view `waiting`.
ALTER TABLE jobherd.parked NO INHERIT jobherd.ready;

-- `parked` comes first, so that a later column of a job is the view's last.
CREATE VIEW jobherd.waiting AS
SELECT false AS parked, r.* FROM jobherd.ready r
UNION ALL
SELECT true, p.* FROM jobherd.parked p;

CREATE OR REPLACE VIEW jobherd.jobs AS
SELECT one.id, one.kind, one.queue, one.priority, one.state, one.attempts,
       coalesce(one.max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = one.kind), 5::smallint) AS max_attempts,
       one.crashes, one.payload, one.result, one.error, one.error_code, one.run_at, one.created_at, one.started_at, one.finished_at, one.progress,
       coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at,
                            'error_code', a.error_code, 'error_class', a.usage ->> 'error_class', 'error', a.error, 'traceback', a.traceback,
                            'ran_on', a.ran_on,
                            'usage', CASE WHEN jsonb_typeof(a.usage) = 'object' THEN nullif(a.usage - 'error_class', '{}') ELSE a.usage END,
                            'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token)
                   FROM (SELECT * FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1000) AS a), '[]')
       || CASE WHEN one.finished_at IS NULL THEN '[]'
               ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                        'attempt', one.attempts, 'outcome', one.state, 'started_at', one.started_at, 'finished_at', one.finished_at,
                        'error_code', one.error_code, 'error_class', one.usage ->> 'error_class', 'error', one.error,
                        'traceback', one.traceback, 'ran_on', one.ran_on,
                        'usage', CASE WHEN jsonb_typeof(one.usage) = 'object' THEN nullif(one.usage - 'error_class', '{}') ELSE one.usage END,
                        'post_mortem', one.post_mortem, 'token', one.token))) END AS history,
       one.good_until, one.timeout, one.token, one.ran_on, (one.extras).tenant AS tenant, (one.extras).webhook AS webhook,
       octet_length((one.extras).payload_bytes) || ' bytes, ' || encode(substr((one.extras).payload_bytes, 1, 16), 'hex')
       || CASE WHEN octet_length((one.extras).payload_bytes) > 16 THEN '...' ELSE '' END AS payload_bytes,
       (one.extras).set_off_by AS set_off_by, (one.extras).traceparent AS traceparent,
       CASE WHEN one.finished_at IS NOT NULL THEN one.usage ->> 'error_class'
            WHEN one.error IS NOT NULL
            THEN (SELECT t.usage ->> 'error_class' FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1) END AS error_class
  FROM (SELECT r.id, r.kind, r.queue, r.priority, CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, r.attempts,
               r.max_attempts, r.crashes, r.payload, NULL::json AS result, r.last_error ->> 'message' AS error,
               r.last_error ->> 'code' AS error_code, r.run_at, r.created_at, NULL::timestamptz AS started_at,
               NULL::timestamptz AS finished_at, NULL::jsonb AS progress, r.good_until, r.timeout, NULL::bigint AS token,
               NULL::text AS traceback, NULL::text AS ran_on, NULL::jsonb AS usage, NULL::jsonb AS post_mortem, r.extras
          FROM jobherd.waiting r
        UNION ALL
        SELECT s.id, s.kind, s.queue, s.priority, CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END, s.attempts,
               s.max_attempts, s.crashes, s.payload, NULL, s.last_error ->> 'message', s.last_error ->> 'code', s.run_at, s.created_at, NULL,
               NULL, NULL, s.good_until, s.timeout, NULL, NULL, NULL, NULL, NULL, s.extras
          FROM jobherd.scheduled s
        UNION ALL
        SELECT j.id, j.kind, j.queue, j.priority, 'running', (j.attempts + 1)::smallint,  -- the claim keeps the count before it
               j.max_attempts, j.crashes, j.payload, NULL, j.last_error ->> 'message', j.last_error ->> 'code', j.run_at, j.created_at,
               c.claimed_at, NULL, (SELECT p.progress FROM jobherd.progress p WHERE p.job = j.id AND p.token = c.token), j.good_until,
               j.timeout, c.token, NULL,
               (SELECT s.host || '/' || w.pid FROM jobherd.children w JOIN jobherd.supervisors s ON s.id = w.supervisor WHERE w.id = c.child),
               NULL, NULL, j.extras
          FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
        UNION ALL
        SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts, h.max_attempts, h.crashes, h.payload, h.result, h.error, h.error_code,
               h.run_at, h.created_at, h.started_at, h.finished_at, h.progress, NULL, h.timeout, h.token, h.traceback, h.ran_on, h.usage,
               h.post_mortem, h.extras
          FROM jobherd.history h) AS one;

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
        ), parked AS (
            DELETE FROM jobherd.parked WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM parked UNION ALL SELECT * FROM later
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
            -- The claim is found through its jobs: running is as small as the fleet. Its row is not locked.
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

CREATE OR REPLACE FUNCTION jobherd.demand(job bigint, cost jsonb) RETURNS bigint
    LANGUAGE plpgsql
    AS $_$
DECLARE
    bad   text;
    waits boolean;
BEGIN
    IF cost IS NULL OR jsonb_typeof(cost) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.demand: cost must be an object of amounts, not %', coalesce(left(cost::text, 120), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Like {"memory_mb": 900}.';
    END IF;
    SELECT c.key INTO bad FROM jsonb_each(cost) AS c
     WHERE c.key !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(c.key) > 63 OR jsonb_typeof(c.value) <> 'number' OR c.value::text LIKE '-%' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.demand: cost "%" has a bad name or the bad amount %', left(bad, 120), left((cost -> bad)::text, 120)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Names of lower-case letters, digits and _ . - ; amounts of 0 or more.';
    END IF;
    waits := EXISTS (SELECT FROM jobherd.ready r WHERE r.id = demand.job) OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = demand.job);
    -- A producer may not read parked jobs, and its own transaction has none.
    IF NOT waits AND has_table_privilege('jobherd.parked', 'SELECT') THEN
        waits := EXISTS (SELECT FROM jobherd.parked p WHERE p.id = demand.job);
    END IF;
    IF NOT waits THEN
        RAISE EXCEPTION 'jobherd.demand: no job % is waiting', coalesce(demand.job::text, 'null') USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT has_table_privilege('jobherd.demands', 'UPDATE') THEN
        RETURN (SELECT jobherd.demand_own(ARRAY[demand.job], ARRAY[demand.cost]));
    END IF;
    INSERT INTO jobherd.demands AS d (job, cost) VALUES (demand.job, demand.cost)
    ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost;
    RETURN demand.job;
END $_$;

CREATE OR REPLACE FUNCTION jobherd.reprioritize(job_id bigint, priority integer, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS text
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
        RAISE EXCEPTION 'jobherd.reprioritize: priority % is not a whole number from -32768 to 32767', coalesce(wanted::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The lower, the sooner; 0 is the default.';
    END IF;
    FOR look IN 1..3 LOOP
        SELECT r.priority INTO before FROM jobherd.ready r WHERE r.id = job_id FOR UPDATE;
        IF FOUND THEN
            UPDATE jobherd.ready r SET priority = wanted WHERE r.id = job_id RETURNING CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END INTO answer;
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
            PERFORM jobherd.note_unless_noted(actor, 'reprioritize', jsonb_build_object('job', job_id, 'priority', wanted, 'before', before), why);
            RETURN answer;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;  -- it has moved from one table to the other meanwhile
    END LOOP;
    RETURN answer;
END $$;
