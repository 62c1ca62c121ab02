-- Jobs that wait for other jobs: the option `after`.
--
-- A job that waits is in `blocked`, with one row in `edges` for each job that it waits for, its upstream jobs. An
-- upstream job is marked: its extras name a flow, 0 if it belongs to none. When a marked job gets into the history,
-- a trigger adds a row to `ends` in the same transaction. Maintenance processes take these rows, write the state
-- into the edges, and release or cancel the blocked jobs (jobherd.pass_on). So no settlement waits for another one.
--
-- A producer marks nothing: its transaction would lock rows that claims wait for. After its commit a maintenance
-- process looks where the upstream jobs are (jobherd.mark_upstreams). tests/models/after.pml proves the protocol.

ALTER TYPE jobherd.extras ADD ATTRIBUTE flow bigint;  -- 0: other jobs wait for this one. Null for all others

CREATE TABLE jobherd.blocked (
    LIKE jobherd.ready INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (id)
)
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.blocked IS 'Jobs that wait for other jobs.';
CREATE INDEX blocked_parent ON jobherd.blocked (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;

CREATE TABLE jobherd.edges (
    downstream bigint  NOT NULL,                        -- the job in `blocked`
    upstream   bigint  NOT NULL,                        -- the job that it waits for
    wanted     text COLLATE "C" NOT NULL DEFAULT 'completed',
    state      text COLLATE "C",                        -- in which the upstream job ended; null: it has not
    marked     boolean NOT NULL DEFAULT false,          -- the upstream job is marked, or its end is known
    PRIMARY KEY (downstream, upstream),
    CONSTRAINT edges_wanted_is_an_end CHECK (wanted IN ('completed', 'failed', 'ended'))
)
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.edges IS 'Which blocked job waits for which job. Deleted once the blocked job is released.';
CREATE INDEX edges_open ON jobherd.edges (upstream, downstream) WHERE state IS NULL;
CREATE INDEX edges_unmarked ON jobherd.edges (upstream) WHERE NOT marked;

CREATE TABLE jobherd.ends (
    flow  bigint NOT NULL,                              -- 0: the job belongs to no flow
    id    bigint GENERATED ALWAYS AS IDENTITY,
    job   bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    PRIMARY KEY (flow, id)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.ends IS 'Ends of marked jobs that maintenance processes have not passed on yet.';

-- Trigger on `history`. Whatever ends a job inserts there, so no way to end one is missed.
-- A job that is not needed, since the job whose failure it waits for has completed, is canceled. Its flow does not count that.
CREATE FUNCTION jobherd.note_end()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO jobherd.ends (flow, job, state)
    VALUES ((NEW.extras).flow, NEW.id, CASE WHEN NEW.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE NEW.state END);
    RETURN NULL;
END $$;
CREATE TRIGGER note_end AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).flow IS NOT NULL)
    EXECUTE FUNCTION jobherd.note_end();

-- Returns upstream jobs without duplicates. Raises an error for ids that no job has, and for jobs that the session's
-- role must not see: a tenant must not learn when another tenant's job ends.
CREATE FUNCTION jobherd.check_upstreams(upstream bigint[], wanted text, confined boolean)
RETURNS bigint[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    jobs CONSTANT bigint[] := array(SELECT DISTINCT u FROM unnest(upstream) AS u ORDER BY u);
    bad  bigint;
BEGIN
    IF wanted <> ALL ('{completed,failed,ended}') THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "when" is completed, failed or ended, not %', quote_literal(left(wanted, 40))
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(jobs) NOT BETWEEN 1 AND 1000 OR array_position(jobs, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "after" must name 1 to 1000 jobs'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Put more jobs than that into a group.';
    END IF;
    SELECT u INTO bad FROM unnest(jobs) AS u
     WHERE u < 1 OR u > (SELECT s.last_value FROM jobherd.job_ids s)
        OR confined AND NOT EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = u AND j.tenant = ANY (jobherd.own_tenants()))
     LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "after" names job %, which does not exist', bad
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Enqueue the job that must run first before the one that waits.';
    END IF;
    RETURN jobs;
END $$;

-- Enqueues jobs of one kind that wait until other jobs have ended, and returns their ids in the order of the
-- payloads. Producers may not write `blocked`, so it runs as the owner. wanted: see jobherd.enqueue, `when`.
CREATE FUNCTION jobherd.enqueue_after(
    kind text, payloads text[], upstream bigint[], wanted text DEFAULT NULL, partition text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, timeout double precision DEFAULT NULL,
    priority smallint DEFAULT 0, max_attempts smallint DEFAULT NULL, queue text DEFAULT 'default',
    tenant text DEFAULT NULL, webhook text DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL
)
RETURNS TABLE (place integer, id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    jobs    bigint[];
    common  jobherd.extras;
    divided text[];
    confined boolean := false;
    named   CONSTANT text := partition;
BEGIN
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        PERFORM jobherd.check_producer(kind, tenant);
        confined := jobherd.is_tenant();
    END IF;
    jobs := jobherd.check_upstreams(upstream, coalesce(wanted, 'completed'), confined);
    common := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), payload_bytes, parent_id,
                                jobherd.check_traceparent(traceparent));
    SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = enqueue_after.kind;
    RETURN QUERY
    WITH new AS MATERIALIZED (
        SELECT p.place::integer AS place, nextval('jobherd.job_ids') AS id, p.payload,
               jobherd.partition_of(named, divided, p.payload::json, enqueue_after.tenant, confined) AS name
          FROM unnest(payloads) WITH ORDINALITY AS p (payload, place)
    ), put AS (
        INSERT INTO jobherd.blocked (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT n.id, coalesce(enqueue_after.run_at, now()), enqueue_after.expires_at, enqueue_after.timeout,
               enqueue_after.priority, enqueue_after.max_attempts, enqueue_after.queue, enqueue_after.kind, n.payload::json,
               jobherd.with_partition(common, n.name), jobherd.lane_of(n.name)
          FROM new n
    ), tied AS (
        INSERT INTO jobherd.edges (downstream, upstream, wanted)
        SELECT n.id, u, coalesce(enqueue_after.wanted, 'completed') FROM new n CROSS JOIN unnest(jobs) AS u
    )
    SELECT n.place, n.id FROM new n ORDER BY n.place;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
END $$;
COMMENT ON FUNCTION jobherd.enqueue_after IS
    'Enqueues jobs of one kind that wait until other jobs have ended. Returns for each payload the id of its job.';

-- Returns whether an upstream job that ended so is what the blocked job waits for.
CREATE FUNCTION jobherd.is_wanted(wanted text, state text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE wanted WHEN 'ended' THEN true WHEN 'completed' THEN state = 'completed' ELSE state IN ('failed', 'expired') END
$$;

-- Passes on up to `most` ends of jobs that belong to no flow. An end stays until none of its edges is open.
CREATE FUNCTION jobherd.resolve_ends(most integer, OUT ended bigint, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    rows   bigint[];
    jobs   bigint[];
    states text[];
BEGIN
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.state) INTO rows, jobs, states
      FROM (SELECT e.id, e.job, e.state FROM jobherd.ends e WHERE e.flow = 0 ORDER BY e.id LIMIT most FOR UPDATE SKIP LOCKED) AS f;
    ended := 0;
    IF rows IS NULL THEN
        RETURN;
    END IF;
    SELECT p.released, p.cancelled INTO released, cancelled FROM jobherd.pass_on(jobs, states, most) AS p;
    DELETE FROM jobherd.ends e
     WHERE e.flow = 0 AND e.id = ANY (rows)
       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream
                        WHERE g.upstream = e.job AND g.state IS NULL);
    GET DIAGNOSTICS ended = ROW_COUNT;
END $$;

CREATE OR REPLACE FUNCTION jobherd.reprioritize(
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

CREATE OR REPLACE FUNCTION jobherd.reschedule(
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

CREATE OR REPLACE FUNCTION jobherd.demand_own(jobs bigint[], costs jsonb[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    said integer;
BEGIN
    RETURN QUERY
        INSERT INTO jobherd.demands AS d (job, cost)
        SELECT g.job, g.cost FROM unnest(demand_own.jobs, demand_own.costs) AS g (job, cost)
         WHERE EXISTS (SELECT FROM jobherd.ready r WHERE r.id = g.job AND r.created_at = now())
            OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = g.job AND s.created_at = now())
            OR EXISTS (SELECT FROM jobherd.blocked b WHERE b.id = g.job AND b.created_at = now())
        ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost
        RETURNING d.job;
    GET DIAGNOSTICS said = ROW_COUNT;
    IF said < cardinality(demand_own.jobs) THEN
        RAISE EXCEPTION 'jobherd.demand: a job was not enqueued by this transaction'
            USING ERRCODE = 'insufficient_privilege',
                HINT = 'Say what a job costs in the transaction that enqueues it.';
    END IF;
END $$;

-- The options `after` and `when`.
CREATE OR REPLACE FUNCTION jobherd.enqueue_with(
    kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,expires_at,tenant,webhook,parent_id,'
                              'traceparent,unique,unique_key,unique_for,debounce,max_wait,throttle,edge,partition,after,when}';
    name   text;
    wanted jsonb := coalesce(options, '{}');
    body   text := coalesce(payload, '{}')::text;
    due    timestamptz := now();
    job    jobherd.ready;
    hostile text;
    rule    jsonb;
    names   text[];
    paths   text[];
    divided text[];
    added   boolean;
    earlier bigint[];
BEGIN
    IF kind IS NULL OR kind !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(kind) > 100 THEN
        RAISE EXCEPTION 'jobherd.enqueue: kind % is not a name like "mail:receipt"',
            coalesce(quote_literal(left(kind, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Lower-case letters, digits and _ . : - , at most 100 characters.';
    END IF;
    IF jsonb_typeof(wanted) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.enqueue: options must be a JSON object, not a %', jsonb_typeof(wanted)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF wanted <> '{}' THEN
        SELECT key INTO name FROM jsonb_object_keys(wanted) AS key WHERE key <> ALL (known) ORDER BY key LIMIT 1;
        IF name IS NOT NULL THEN
            RAISE EXCEPTION 'jobherd.enqueue: unknown option "%"', left(name, 120)
                USING ERRCODE = 'invalid_parameter_value', 
                      HINT = 'Known options: ' || array_to_string(known, ', ') || '.';
        END IF;
        IF wanted ? 'delay' AND wanted ? 'run_at' THEN
            RAISE EXCEPTION 'jobherd.enqueue: options "delay" and "run_at" exclude each other'
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one of them.';
        END IF;
    END IF;
    IF octet_length(body) > 1000000 THEN
        RAISE EXCEPTION 'jobherd.enqueue: payload is % bytes, more than 1000000', octet_length(body)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store the data elsewhere and enqueue its key.';
    END IF;
    -- Cost: the walk costs more than the insert, so only a document that can be deep or hold a huge number is walked.
    IF octet_length(body) > 200
       AND (body ~ '[0-9]{250}[0-9]{250}[0-9]{250}[0-9]{250}[0-9]'
            OR octet_length(body) - octet_length(translate(body, '[{', '')) > 100) THEN
        hostile := jobherd.hostile_path(payload);
        IF hostile IS NOT NULL THEN
            RAISE EXCEPTION 'jobherd.enqueue: payload %', left(hostile, 500) USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF octet_length(bytes) > 1000000 THEN
        RAISE EXCEPTION 'jobherd.enqueue: payload_bytes are % bytes, more than 1000000', octet_length(bytes)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store the data elsewhere and enqueue its key.';
    END IF;
    job.kind := kind;
    job.payload := body::json;
    name := 'queue';  -- the option that an error below names
    BEGIN
        SELECT coalesce(wanted ->> 'queue', k.queue, 'default'), coalesce(k.priority, 0), k.partition_by
          INTO job.queue, job.priority, divided
            FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = enqueue_with.kind;
        IF job.queue !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(job.queue) > 63 THEN
            RAISE EXCEPTION 'not a queue name';
        END IF;
        name := 'priority';
        job.priority := coalesce((wanted ->> 'priority')::smallint, job.priority);
        name := 'delay';
        IF wanted ->> 'delay' ~ '^[0-9.]+$' THEN
            due := now() + make_interval(secs => (wanted ->> 'delay')::double precision);
        ELSIF wanted ->> 'delay' IS NOT NULL THEN
            due := now() + greatest((wanted ->> 'delay')::interval, '0');
        END IF;
        IF wanted ->> 'run_at' IS NOT NULL THEN
            name := 'run_at';
            due := (wanted ->> 'run_at')::timestamptz;
        END IF;
        IF NOT isfinite(due) OR due <= '1900-01-01 00:00Z' OR due >= '9000-01-01 00:00Z' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'max_attempts';
        job.max_attempts := (wanted ->> 'max_attempts')::smallint;
        IF job.max_attempts < 1 THEN RAISE EXCEPTION 'must be at least 1'; END IF;
        name := 'timeout';
        IF wanted ->> 'timeout' ~ '^[0-9.]+$' THEN
            job.timeout := (wanted ->> 'timeout')::double precision;
        ELSIF wanted ->> 'timeout' IS NOT NULL THEN
            job.timeout := extract(epoch FROM (wanted ->> 'timeout')::interval);
        END IF;
        IF job.timeout <= 0 THEN RAISE EXCEPTION 'must be more than 0 seconds'; END IF;
        name := 'expires_at';
        job.expires_at := (wanted ->> 'expires_at')::timestamptz;
        IF NOT isfinite(job.expires_at) OR job.expires_at <= '1900-01-01 00:00Z'
           OR job.expires_at >= '9000-01-01 00:00Z' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'tenant';
        job.extras.tenant := coalesce(jobherd.check_tenant(wanted ->> 'tenant'), jobherd.default_tenant());
        name := 'partition';
        job.extras.partition := jobherd.partition_of(wanted ->> 'partition', divided, job.payload, (job.extras).tenant,
                                                     row_security_active('jobherd.ready'::regclass));
        job.lane := jobherd.lane_of((job.extras).partition);
        name := 'webhook';
        job.extras.webhook := jobherd.check_webhook(wanted ->> 'webhook');
        name := 'parent_id';
        job.extras.parent_id := (wanted ->> 'parent_id')::bigint;
        name := 'traceparent';
        job.extras.traceparent := jobherd.check_traceparent(wanted ->> 'traceparent');
        IF wanted ?| '{after,when}' THEN
            name := 'after';
            earlier := array(SELECT u::bigint FROM jsonb_array_elements_text(
                CASE jsonb_typeof(wanted -> 'after') WHEN 'number' THEN jsonb_build_array(wanted -> 'after') ELSE wanted -> 'after' END) AS u);
            IF NOT wanted ? 'after' THEN
                RAISE EXCEPTION '"when" requires "after"';
            ELSIF wanted ?| '{unique,unique_key,unique_for,debounce,max_wait,throttle,edge}' THEN
                RAISE EXCEPTION 'it excludes the options of unique jobs';
            END IF;
        END IF;
        IF wanted ?| '{unique,unique_key,unique_for,debounce,max_wait,throttle,edge}' THEN
            name := 'unique';
            rule := jobherd.unique_rule(wanted);
            SELECT array_agg(f.name), array_agg(f.path) INTO names, paths FROM jobherd.unique_fields(rule -> 'by') AS f;
            rule := rule || jsonb_strip_nulls(jsonb_build_object('partition', wanted ->> 'partition'));
            due := coalesce(now() + make_interval(secs => (rule ->> 'delay')::double precision), due);
            IF bytes IS NOT NULL AND rule ? 'collect' THEN
                RAISE EXCEPTION 'the conflict collect excludes bytes';
            END IF;
        END IF;
        job.extras.payload_bytes := bytes;
        IF job.extras IS NULL THEN
            job.extras := NULL;  -- the column is null, not a row of nulls
        END IF;
    EXCEPTION WHEN data_exception OR raise_exception THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "%" has a bad value %: %', name, left((wanted -> name)::text, 120),
            SQLERRM
            USING ERRCODE = 'invalid_parameter_value';
    END;
    IF rule IS NOT NULL THEN
        IF rule ->> 'conflict' IN ('replace', 'collect') THEN
            SELECT u.id INTO job.id FROM jobherd.enqueue_keyed(kind, ARRAY[body], rule, names, paths, NULL, due,
                job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, (job.extras).tenant,
                (job.extras).webhook, bytes, (job.extras).parent_id, (job.extras).traceparent) AS u;
        ELSE
            SELECT u.id, u.new INTO job.id, added FROM jobherd.enqueue_unique(kind, ARRAY[body], rule, names, paths, NULL, due,
                job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, (job.extras).tenant,
                (job.extras).webhook, bytes, (job.extras).parent_id, (job.extras).traceparent) AS u;
            IF rule ->> 'conflict' = 'raise' AND NOT added THEN
                RAISE EXCEPTION 'jobherd.enqueue: job % holds the same key', job.id
                    USING ERRCODE = 'unique_violation', HINT = 'The call has enqueued nothing.';
            END IF;
        END IF;
        RETURN job.id;
    END IF;
    IF earlier IS NOT NULL THEN
        RETURN (SELECT a.id FROM jobherd.enqueue_after(
            kind, ARRAY[body], earlier, wanted ->> 'when', wanted ->> 'partition', due, job.expires_at, job.timeout, job.priority,
            job.max_attempts, job.queue, (job.extras).tenant, (job.extras).webhook, bytes, (job.extras).parent_id,
            (job.extras).traceparent) AS a);
    END IF;
    IF due > now() THEN
        INSERT INTO jobherd.scheduled (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                       extras, lane)
        VALUES (due, job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload,
                job.extras, job.lane)
        RETURNING id INTO job.id;
    ELSE
        INSERT INTO jobherd.ready (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras,
                                   lane)
        VALUES (due, job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload,
                job.extras, job.lane)
        RETURNING id INTO job.id;
    END IF;
    RETURN job.id;
END $$;
COMMENT ON FUNCTION jobherd.enqueue(text, jsonb, jsonb) IS
    'Enqueues one job in the caller''s transaction, and returns its id. SELECT '
    'jobherd.enqueue(''mail:receipt'', ''{"order_id": 7}'', ''{"delay": "10 minutes", "priority": -5}''); '
    'Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or '
    'an interval), expires_at, tenant, partition, webhook, parent_id, traceparent; after (ids of jobs that must end first) and when '
    '(completed, failed or ended); unique (true, fields of the payload, or an object with by, queue, during, conflict, collect), '
    'unique_key, unique_for, debounce, max_wait, throttle, edge. Returns the id of the job that holds the key of a unique job.';

CREATE OR REPLACE VIEW jobherd.jobs AS
SELECT one.id, one.kind, one.queue, one.priority, one.state, one.attempts,
       coalesce(one.max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = one.kind),
                5::smallint) AS max_attempts,
       one.crashes, one.payload, one.result, one.error, one.error_code,
       one.run_at, one.created_at, one.started_at, one.finished_at, one.progress,
       coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', a.attempt, 'outcome', a.outcome,
                            'started_at', a.started_at, 'finished_at', a.finished_at,
                            'error_code', a.error_code, 'error_class', a.usage ->> 'error_class',
                            'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on,
                            'usage', CASE WHEN jsonb_typeof(a.usage) = 'object'
                                          THEN nullif(a.usage - 'error_class', '{}') ELSE a.usage END,
                            'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token)
                   FROM (SELECT * FROM jobherd.attempts t WHERE t.job = one.id
                          ORDER BY t.token DESC LIMIT 1000) AS a), '[]')
       || CASE WHEN one.finished_at IS NULL THEN '[]'
               ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                        'attempt', one.attempts, 'outcome', one.state,
                        'started_at', one.started_at, 'finished_at', one.finished_at,
                        'error_code', one.error_code, 'error_class', one.usage ->> 'error_class',
                        'error', one.error, 'traceback', one.traceback, 'ran_on', one.ran_on,
                        'usage', CASE WHEN jsonb_typeof(one.usage) = 'object'
                                      THEN nullif(one.usage - 'error_class', '{}') ELSE one.usage END,
                        'post_mortem', one.post_mortem, 'token', one.token))) END AS history,
       one.expires_at, one.timeout, one.token, one.ran_on,
       (one.extras).tenant AS tenant, (one.extras).webhook AS webhook,
       octet_length((one.extras).payload_bytes) || ' bytes, '
       || encode(substr((one.extras).payload_bytes, 1, 16), 'hex')
       || CASE WHEN octet_length((one.extras).payload_bytes) > 16 THEN '...' ELSE '' END AS payload_bytes,
       (one.extras).parent_id AS parent_id, (one.extras).traceparent AS traceparent,
       CASE WHEN one.finished_at IS NOT NULL THEN one.usage ->> 'error_class'
            WHEN one.error IS NOT NULL
            THEN (SELECT t.usage ->> 'error_class' FROM jobherd.attempts t WHERE t.job = one.id
                   ORDER BY t.token DESC LIMIT 1) END AS error_class,
       (one.extras).partition AS partition
  FROM (SELECT r.id, r.kind, r.queue, r.priority,
               CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, r.attempts,
               r.max_attempts, r.crashes, r.payload, NULL::json AS result,
               r.last_error ->> 'message' AS error, r.last_error ->> 'code' AS error_code,
               r.run_at, r.created_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at,
               NULL::jsonb AS progress, r.expires_at, r.timeout, NULL::bigint AS token,
               NULL::text AS traceback, NULL::text AS ran_on, NULL::jsonb AS usage,
               NULL::jsonb AS post_mortem, r.extras
          FROM jobherd.waiting r
        UNION ALL
        SELECT s.id, s.kind, s.queue, s.priority,
               CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END, s.attempts,
               s.max_attempts, s.crashes, s.payload, NULL::json,
               s.last_error ->> 'message', s.last_error ->> 'code',
               s.run_at, s.created_at, NULL::timestamptz, NULL::timestamptz,
               NULL::jsonb, s.expires_at, s.timeout, NULL::bigint,
               NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, s.extras
          FROM jobherd.scheduled s
        UNION ALL
        SELECT b.id, b.kind, b.queue, b.priority, 'blocked'::text, b.attempts,
               b.max_attempts, b.crashes, b.payload, NULL::json,
               b.last_error ->> 'message', b.last_error ->> 'code',
               b.run_at, b.created_at, NULL::timestamptz, NULL::timestamptz,
               NULL::jsonb, b.expires_at, b.timeout, NULL::bigint,
               NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, b.extras
          FROM jobherd.blocked b
        UNION ALL
        SELECT j.id, j.kind, j.queue, j.priority,
               'running'::text, (j.attempts + 1)::smallint,  -- the claim stores the count before it
               j.max_attempts, j.crashes, j.payload, NULL::json,
               j.last_error ->> 'message', j.last_error ->> 'code',
               j.run_at, j.created_at, c.claimed_at, NULL::timestamptz,
               (SELECT p.progress FROM jobherd.progress p WHERE p.job = j.id AND p.token = c.token),
               j.expires_at, j.timeout, c.token, NULL::text,
               (SELECT CASE WHEN s.via IS NULL THEN s.host || '/' || w.pid
                            ELSE concat_ws(' via ', s.host,
                                           (SELECT g.host FROM jobherd.supervisors g WHERE g.id = s.via)) END
                  FROM jobherd.children w JOIN jobherd.supervisors s ON s.id = w.supervisor
                 WHERE w.id = c.child),
               NULL::jsonb, NULL::jsonb, j.extras
          FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
        UNION ALL
        SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts,
               h.max_attempts, h.crashes, h.payload, h.result, h.error, h.error_code,
               h.run_at, h.created_at, h.started_at, h.finished_at,
               h.progress, NULL::timestamptz, h.timeout, h.token,
               h.traceback, h.ran_on, h.usage, h.post_mortem, h.extras
          FROM jobherd.history h) AS one;
