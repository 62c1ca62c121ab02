-- A trigger on the past costs each settled job a few hundred nanoseconds, whether it has a webhook or not. So it is there only where
-- webhooks are called: the keeper of a supervisor that has a secret switches them on. Until then nobody can ask for one: its call would
-- be forgotten without a word.
DROP TRIGGER webhook ON jobherd.history;

CREATE FUNCTION jobherd.enable_webhooks() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;
    END IF;
    SET LOCAL lock_timeout = '2s';  -- settlements must not queue behind us for long
    LOCK TABLE jobherd.history IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;  -- another keeper was quicker
    END IF;
    CREATE TRIGGER webhook AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).webhook IS NOT NULL)
        EXECUTE FUNCTION jobherd.call_webhook();
    RETURN true;
END $$;

CREATE FUNCTION jobherd.check_webhook(url text) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF url !~* '^https?://[^/?#@[:space:][:cntrl:]]+([/?][^[:space:][:cntrl:]]*)?$' OR length(url) > 2000 THEN
        RAISE EXCEPTION 'must be a URL like https://example.com/done, without a user, at most 2000 characters';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RAISE EXCEPTION 'jobherd.enqueue: webhooks are not switched on'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Start a supervisor with JOBHERD_WEBHOOK_SECRET, which signs the calls; or call jobherd.enable_webhooks() before.';
    END IF;
    RETURN url;
END $$;

CREATE OR REPLACE FUNCTION jobherd.enqueue_with(kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,good_until,tenant,webhook}';
    name   text;
    wanted jsonb := coalesce(options, '{}');
    body   text := coalesce(payload, '{}')::text;
    due    timestamptz := now();
    job    jobherd.ready;
    hostile text;
BEGIN
    IF kind IS NULL OR kind !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(kind) > 100 THEN
        RAISE EXCEPTION 'jobherd.enqueue: kind % is not a name like "mail:receipt"', coalesce(quote_literal(left(kind, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower-case letters, digits and _ . : - , at most 100 characters.';
    END IF;
    IF jsonb_typeof(wanted) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.enqueue: options must be a JSON object, not a %', jsonb_typeof(wanted)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF wanted <> '{}' THEN
        SELECT key INTO name FROM jsonb_object_keys(wanted) AS key WHERE key <> ALL (known) ORDER BY key LIMIT 1;
        IF name IS NOT NULL THEN
            RAISE EXCEPTION 'jobherd.enqueue: unknown option "%"', left(name, 120)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Known options: ' || array_to_string(known, ', ') || '.';
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
    -- The document is walked only if it can be deep or hold a huge number at all: the walk costs more than the insert.
    IF octet_length(body) > 200 AND (body ~ '[0-9]{250}[0-9]{250}[0-9]{250}[0-9]{250}[0-9]' OR octet_length(body) - octet_length(translate(body, '[{', '')) > 100) THEN
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
    name := 'queue';  -- names the option for the handler below
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
        name := 'run_at';
        due := coalesce((wanted ->> 'run_at')::timestamptz, due);
        IF NOT isfinite(due) OR due > '9000-01-01' OR due < '1900-01-01' THEN
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
        name := 'good_until';
        job.good_until := (wanted ->> 'good_until')::timestamptz;
        IF NOT isfinite(job.good_until) OR job.good_until > '9000-01-01' OR job.good_until < '1900-01-01' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'tenant';
        job.extras.tenant := coalesce(jobherd.check_tenant(wanted ->> 'tenant'), jobherd.default_tenant());
        name := 'webhook';
        job.extras.webhook := jobherd.check_webhook(wanted ->> 'webhook');
        job.extras.payload_bytes := bytes;
        IF job.extras IS NULL THEN
            job.extras := NULL;  -- none of the three: the column is null, and not a row of nulls
        END IF;
    EXCEPTION WHEN data_exception OR raise_exception THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "%" has a bad value %: %', name, left((wanted -> name)::text, 120), SQLERRM
            USING ERRCODE = 'invalid_parameter_value';
    END;
    IF due > now() THEN
        INSERT INTO jobherd.scheduled (run_at, good_until, timeout, priority, max_attempts, queue, kind, payload, extras)
        VALUES (due, job.good_until, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload, job.extras)
        RETURNING id INTO job.id;
    ELSE
        INSERT INTO jobherd.ready (run_at, good_until, timeout, priority, max_attempts, queue, kind, payload, extras)
        VALUES (due, job.good_until, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload, job.extras)
        RETURNING id INTO job.id;
    END IF;
    RETURN job.id;
END $$;
