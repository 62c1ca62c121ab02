-- Partitions: what divides the jobs of a queue, for example by customer.
--
-- The name of a job's partition is in its extras, and stays with the job. Its lane is a hash of that name: claims
-- walk from lane to lane by the index ready_by_lane, and hashes are spread evenly, so a walk can begin anywhere.
-- Enqueue statements take the partition from the payload as the kind declares. COPY cannot, so jobs of such
-- kinds are inserted. Two names have the same lane once in 10^19 pairs: they would share turns and limits.

ALTER TYPE jobherd.extras ADD ATTRIBUTE partition text;
ALTER TABLE jobherd.kinds ADD COLUMN partition_by text[];   -- path to a field of the payload; empty: the tenant

CREATE FUNCTION jobherd.lane_of(partition text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    RETURN substr(encode(sha256(convert_to(partition, 'UTF8')), 'hex'), 1, 16);
END $$;

CREATE FUNCTION jobherd.with_partition(job jobherd.extras, partition text)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF partition IS NULL THEN
        RETURN CASE WHEN NOT job IS NULL THEN job END;  -- the column is null, not a row of nulls
    END IF;
    job.partition := partition;
    RETURN job;
END $$;

-- Returns whether the session's role is limited to its tenants. For functions that run as the owner: there,
-- row_security_active() asks about the owner.
CREATE FUNCTION jobherd.is_tenant()
RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    who CONSTANT name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    RETURN (SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass)
           AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = who AND (r.rolsuper OR r.rolbypassrls))
           AND NOT EXISTS (SELECT FROM pg_roles r
                            WHERE (r.rolname IN ('jobherd_enqueue', 'jobherd_work', 'jobherd_admin')
                                   OR r.oid = (SELECT c.relowner FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass))
                              AND pg_has_role(who, r.oid, 'USAGE'));
END $$;

-- Returns the partition of a job: the named one, or else what the kind declares. Jobs of a role that is limited
-- to its tenants have their tenant as partition: it gets no further turns by dividing its jobs.
-- confined: false if the caller is certainly not such a role.
CREATE FUNCTION jobherd.partition_of(named text, path text[], payload json, tenant text, confined boolean)
RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found text := coalesce(named, CASE WHEN path = '{}' THEN tenant ELSE payload #>> path END);
BEGIN
    IF confined AND jobherd.is_tenant() THEN
        RETURN tenant;
    ELSIF length(found) > 200 OR found ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'jobherd.enqueue: partition % is not a text of at most 200 printable characters',
            quote_literal(left(found, 120))
            USING ERRCODE = 'invalid_parameter_value',
                HINT = CASE WHEN named IS NULL THEN 'The kind takes it from the payload: give the job a shorter value there.'
                            ELSE 'Give a short name, such as the id of a customer.' END;
    END IF;
    RETURN nullif(found, '');
END $$;

-- Raises an error unless the session's role may enqueue such jobs, see 0007_unique_jobs.sql. Compares by bytes: in the
-- order of a database with an ICU or other collation, `jobs;` comes before `jobs:`, and system kinds would pass.
CREATE FUNCTION jobherd.check_producer(kind text, tenant text)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    who CONSTANT name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    IF NOT has_column_privilege(who, 'jobherd.ready', 'payload', 'INSERT')
       OR (starts_with(kind, 'jobs:') AND NOT has_column_privilege(who, 'jobherd.ready', 'id', 'INSERT')) THEN
        RAISE EXCEPTION 'jobherd: role % must not enqueue jobs of kind %', quote_ident(who), left(kind, 120)
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Cost: the first conditions hold for most producers, and need no query. The owner is the current user.
    IF pg_has_role(who, current_user, 'USAGE') OR pg_has_role(who, to_regrole('jobherd_enqueue'), 'USAGE')
       OR pg_has_role(who, to_regrole('jobherd_work'), 'USAGE') OR pg_has_role(who, to_regrole('jobherd_admin'), 'USAGE') THEN
        RETURN;
    END IF;
    IF (SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = 'jobherd.ready'::regclass)
       AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = who AND r.rolbypassrls)
       AND (tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd: role % must not enqueue jobs of tenant %', quote_ident(who),
            coalesce(quote_literal(left(tenant, 120)), 'null')
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- A tenant's role cannot choose the lane of another tenant, nor the name from which a retry makes the lane, nor leave
-- its jobs without one: no limit of each partition would hold for them.
ALTER POLICY own_tenant ON jobherd.ready
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant));
ALTER POLICY own_tenant ON jobherd.scheduled
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant));

CREATE OR REPLACE FUNCTION jobherd.let_enqueue(role name)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE format('REVOKE INSERT ON jobherd.ready, jobherd.scheduled FROM %I', let_enqueue.role);
    EXECUTE format('GRANT SELECT, INSERT (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,'
                   ' extras, lane) ON jobherd.ready, jobherd.scheduled TO %I', let_enqueue.role);
END $$;
DO $$
DECLARE
    who name;
BEGIN
    FOR who IN SELECT DISTINCT t.role FROM jobherd.tenants t JOIN pg_roles r ON r.rolname = t.role LOOP
        PERFORM jobherd.let_enqueue(who);
    END LOOP;
END $$;

-- Checks the payload and each option, and enqueues. The limits of a time are the same for all
-- sessions, whatever their time zone: otherwise the tables reject the job with an error that shows the
-- whole row, payload included.
CREATE OR REPLACE FUNCTION jobherd.enqueue_with(
    kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,expires_at,tenant,webhook,parent_id,'
                              'traceparent,unique,unique_key,unique_for,debounce,max_wait,throttle,edge,partition}';
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

-- Cost: without options this does little more than insert: on an idle machine each expression costs
-- the caller some microseconds. It measures the payload as the text that it becomes: as jsonb, 1e5000
-- takes ten bytes. Jobs of a kind that declares a partition take the longer way.
CREATE OR REPLACE FUNCTION jobherd.enqueue(kind text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}')
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    body text;
    job  bigint;
BEGIN
    IF options = '{}' AND NOT row_security_active('jobherd.ready'::regclass) AND pg_column_size(payload) <= 200
       AND kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100 THEN
        body := payload::text;
        IF octet_length(body) <= 200 THEN
            INSERT INTO jobherd.ready (kind, payload, queue, priority)
            SELECT enqueue.kind, body::json, coalesce(k.queue, 'default'), coalesce(k.priority, 0::smallint)
              FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = enqueue.kind
             WHERE k.partition_by IS NULL
            RETURNING id INTO job;
            IF FOUND THEN
                RETURN job;
            END IF;
        END IF;
    END IF;
    RETURN jobherd.enqueue_with(kind, payload, options);
END $$;
COMMENT ON FUNCTION jobherd.enqueue(text, jsonb, jsonb) IS
    'Enqueues one job in the caller''s transaction, and returns its id. SELECT '
    'jobherd.enqueue(''mail:receipt'', ''{"order_id": 7}'', ''{"delay": "10 minutes", "priority": -5}''); '
    'Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or '
    'an interval), expires_at, tenant, partition, webhook, parent_id, traceparent; unique (true, fields of the payload, or an object '
    'with by, queue, during, conflict, collect), '
    'unique_key, unique_for, debounce, max_wait, throttle, edge. Returns the id of the job that holds the key of a unique job.';

-- A retry by hand gives the job its lane again.
CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL)
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

-- Stores an instant and enqueues its job. Returns the job, or null if the instant has one already.
-- run: {"at", "run_at", "expires_at", "missed", "payload"}.
CREATE FUNCTION jobherd.start_run(schedule text, kind text, options jsonb, run jsonb, decided text, by text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    job     jobherd.ready;
    divided text[];
    number CONSTANT bigint := nextval('jobherd.job_ids');
BEGIN
    INSERT INTO jobherd.ticks AS t (schedule, at, decided, job, missed, by)
    VALUES (start_run.schedule, (run ->> 'at')::timestamptz, start_run.decided, number, (run ->> 'missed')::bigint,
            start_run.by)
    ON CONFLICT ON CONSTRAINT ticks_pkey DO UPDATE
       SET decided = excluded.decided, job = excluded.job, missed = excluded.missed, by = excluded.by,
           noted_at = excluded.noted_at
     WHERE t.job IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(options ->> 'queue', k.queue, 'default'), coalesce((options ->> 'priority')::smallint, k.priority, 0),
           k.partition_by
      INTO job.queue, job.priority, divided
      FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = start_run.kind;
    job.run_at := (run ->> 'run_at')::timestamptz;
    job.expires_at := (run ->> 'expires_at')::timestamptz;
    job.payload := (run -> 'payload')::json;
    job.extras.schedule := jsonb_build_object('name', start_run.schedule, 'at', run -> 'at', 'missed', run -> 'missed');
    BEGIN
        job.extras.partition := jobherd.partition_of(NULL, divided, job.payload, NULL, false);
    EXCEPTION WHEN invalid_parameter_value THEN
        job.extras.partition := NULL;  -- otherwise one schedule would end each maintenance process
    END;
    job.lane := jobherd.lane_of((job.extras).partition);
    IF job.run_at > now() THEN
        INSERT INTO jobherd.scheduled (id, run_at, expires_at, priority, queue, kind, payload, extras, lane)
        VALUES (number, job.run_at, job.expires_at, job.priority, job.queue, start_run.kind, job.payload, job.extras,
                job.lane);
    ELSE
        INSERT INTO jobherd.ready (id, run_at, expires_at, priority, queue, kind, payload, extras, lane)
        VALUES (number, job.run_at, job.expires_at, job.priority, job.queue, start_run.kind, job.payload, job.extras,
                job.lane);
    END IF;
    RETURN number;
END $$;

-- A retry with another payload keeps a partition that the kind does not take from the payload.
CREATE OR REPLACE FUNCTION jobherd.retry_edited(
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

-- The jobs, with their partitions.
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
CREATE OR REPLACE VIEW jobherd.tenant_jobs WITH (security_barrier = true) AS
SELECT id, kind, queue, priority, state, attempts, max_attempts, crashes, payload, result, error, error_code,
       run_at, created_at, started_at, finished_at, progress, history, expires_at, timeout, token, ran_on,
       tenant, webhook, payload_bytes, parent_id, traceparent, partition
  FROM jobherd.jobs
 WHERE tenant = ANY ((SELECT jobherd.own_tenants())::text[]);
