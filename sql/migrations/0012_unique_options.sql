-- Unique jobs by SQL: the options of jobherd.enqueue that Python has.

-- Returns the rule of enqueue_unique and enqueue_keyed for the options of a job.
CREATE FUNCTION jobherd.unique_rule(options jsonb)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    fields   CONSTANT jsonb := CASE WHEN options ? 'unique' THEN options -> 'unique' ELSE 'true' END;
    word     CONSTANT text := options ->> 'unique_key';
    pause    CONSTANT double precision := jobherd.seconds_of(options ->> 'debounce');
    patience CONSTANT double precision := jobherd.seconds_of(options ->> 'max_wait');
    lasts    CONSTANT double precision := jobherd.seconds_of(options ->> 'unique_for');
    throttle CONSTANT double precision := jobherd.seconds_of(options ->> 'throttle');
BEGIN
    IF fields NOT IN ('true', 'false') AND jsonb_typeof(fields) NOT IN ('string', 'array') THEN
        RAISE EXCEPTION 'must be true, false, or fields of the payload like ["order_id"]';
    ELSIF fields = 'false' THEN
        RETURN NULL;
    ELSIF length(word) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'unique_key must have 1 to 1,000 characters';
    ELSIF least(pause, patience, lasts, throttle) <= 0 THEN
        RAISE EXCEPTION 'durations must be more than 0 seconds';
    ELSIF throttle IS NOT NULL AND (pause IS NOT NULL OR lasts IS NOT NULL) THEN
        RAISE EXCEPTION 'throttle excludes debounce and unique_for';
    ELSIF patience IS NOT NULL AND (pause IS NULL OR patience < pause) THEN
        RAISE EXCEPTION 'max_wait requires debounce, and must not be shorter';
    ELSIF pause IS NOT NULL AND options ?| '{delay,run_at}' THEN
        RAISE EXCEPTION 'debounce excludes delay and run_at';
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'by', CASE WHEN word IS NULL AND fields <> 'true'
                   THEN CASE jsonb_typeof(fields) WHEN 'array' THEN fields ELSE jsonb_build_array(fields) END END,
        'key', word, 'during', CASE WHEN throttle IS NULL THEN 'live' ELSE 'never' END,
        'for', coalesce(throttle, lasts), 'debounce', pause, 'max_wait', coalesce(patience, 10 * pause),
        'conflict', CASE WHEN pause IS NULL THEN 'ignore' ELSE 'replace' END));
END $$;

-- Returns name and path of each field of a payload: `order_id`, or a path such as `$.doc.items[0]`.
CREATE FUNCTION jobherd.unique_fields(fields jsonb)
RETURNS TABLE (name text, path text)
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    FOR name IN SELECT f FROM jsonb_array_elements_text(fields) AS f LOOP
        IF name ~ '^[^.$\[\]]+$' THEN
            path := ARRAY[name]::text;
        ELSIF name ~ '^\$(\.[^.$\[\]]+|\[[0-9]{1,9}\])+$' THEN
            path := (SELECT array_agg(coalesce(m[1], m[2])) FROM regexp_matches(name, '\.([^.\[]+)|\[([0-9]+)\]', 'g') AS m)::text;
        ELSE
            RAISE EXCEPTION 'must name fields of the payload, like order_id or $.doc.id';
        END IF;
        RETURN NEXT;
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
                              'traceparent,unique,unique_key,unique_for,debounce,max_wait,throttle}';
    name   text;
    wanted jsonb := coalesce(options, '{}');
    body   text := coalesce(payload, '{}')::text;
    due    timestamptz := now();
    job    jobherd.ready;
    hostile text;
    rule    jsonb;
    names   text[];
    paths   text[];
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
        SELECT coalesce(wanted ->> 'queue', k.queue, 'default'), coalesce(k.priority, 0) INTO job.queue, job.priority
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
        name := 'webhook';
        job.extras.webhook := jobherd.check_webhook(wanted ->> 'webhook');
        name := 'parent_id';
        job.extras.parent_id := (wanted ->> 'parent_id')::bigint;
        name := 'traceparent';
        job.extras.traceparent := jobherd.check_traceparent(wanted ->> 'traceparent');
        IF wanted ?| '{unique,unique_key,unique_for,debounce,max_wait,throttle}' THEN
            name := 'unique';
            rule := jobherd.unique_rule(wanted);
            SELECT array_agg(f.name), array_agg(f.path) INTO names, paths FROM jobherd.unique_fields(rule -> 'by') AS f;
            due := coalesce(now() + make_interval(secs => (rule ->> 'debounce')::double precision), due);
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
        IF rule ->> 'conflict' = 'replace' THEN
            SELECT u.id INTO job.id FROM jobherd.enqueue_keyed(kind, ARRAY[body], rule, names, paths, NULL, due,
                job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, (job.extras).tenant,
                (job.extras).webhook, bytes, (job.extras).parent_id, (job.extras).traceparent) AS u;
        ELSE
            SELECT u.id INTO job.id FROM jobherd.enqueue_unique(kind, ARRAY[body], rule, names, paths, NULL, due,
                job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, (job.extras).tenant,
                (job.extras).webhook, bytes, (job.extras).parent_id, (job.extras).traceparent) AS u;
        END IF;
        RETURN job.id;
    END IF;
    IF due > now() THEN
        INSERT INTO jobherd.scheduled (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                       extras)
        VALUES (due, job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload,
                job.extras)
        RETURNING id INTO job.id;
    ELSE
        INSERT INTO jobherd.ready (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras)
        VALUES (due, job.expires_at, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload,
                job.extras)
        RETURNING id INTO job.id;
    END IF;
    RETURN job.id;
END $$;

COMMENT ON FUNCTION jobherd.enqueue(text, jsonb, jsonb) IS
    'Enqueues one job in the caller''s transaction, and returns its id. SELECT '
    'jobherd.enqueue(''mail:receipt'', ''{"order_id": 7}'', ''{"delay": "10 minutes", "priority": -5}''); '
    'Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or '
    'an interval), expires_at, tenant, webhook, parent_id, traceparent; unique (true, or fields of the payload), '
    'unique_key, unique_for, debounce, max_wait, throttle. Returns the id of the job that holds the key of a unique job.';
