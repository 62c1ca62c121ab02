-- Enqueue by SQL, from any language. The signatures are stable: a new option is a new key of
-- `options`, never a new parameter. Jobherd's own clients insert by the statements in
-- sql/queries/enqueue/.

-- Checks the payload and each option, and enqueues. The limits of a time are the same for all
-- sessions, whatever their time zone: otherwise the tables reject the job with an error that shows the
-- whole row, payload included.
CREATE FUNCTION jobherd.enqueue_with(
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

-- Cost: without options this does little more than insert: on an idle machine each expression costs
-- the caller some microseconds. It measures the payload as the text that it becomes: as jsonb, 1e5000
-- takes ten bytes. Jobs of a kind that declares a partition take the longer way.
CREATE FUNCTION jobherd.enqueue(kind text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}')
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
    'an interval), expires_at, tenant, partition, webhook, parent_id, traceparent; after (ids of jobs that must end first) and when '
    '(completed, failed or ended); unique (true, fields of the payload, or an object with by, queue, during, conflict, collect), '
    'unique_key, unique_for, debounce, max_wait, throttle, edge. Returns the id of the job that holds the key of a unique job.';

CREATE FUNCTION jobherd.enqueue_bytes(
    kind text, payload_bytes bytea, options jsonb DEFAULT '{}', payload jsonb DEFAULT '{}'
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    IF payload_bytes IS NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue_bytes: payload_bytes must not be null'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give an empty bytea, or call jobherd.enqueue.';
    END IF;
    RETURN jobherd.enqueue_with(kind, payload, options, payload_bytes);
END $$;
COMMENT ON FUNCTION jobherd.enqueue_bytes(text, bytea, jsonb, jsonb) IS
    'Enqueues one job whose payload is bytes. JSON that belongs to it can be given as payload.';
