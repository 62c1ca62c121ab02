-- A name's length is counted, not matched: a bounded repetition cost 3 us a row where the pattern without it costs 0.2, and a job is
-- checked each time it is inserted.
ALTER TABLE jobherd.ready
    DROP CONSTRAINT ready_queue_is_a_name, DROP CONSTRAINT ready_kind_is_a_name,
    ADD CONSTRAINT ready_queue_is_a_name CHECK (queue ~ '^[a-z0-9_][a-z0-9_.-]*$' AND length(queue) <= 63),
    ADD CONSTRAINT ready_kind_is_a_name CHECK (kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100);
ALTER TABLE jobherd.scheduled
    DROP CONSTRAINT ready_queue_is_a_name, DROP CONSTRAINT ready_kind_is_a_name,
    ADD CONSTRAINT scheduled_queue_is_a_name CHECK (queue ~ '^[a-z0-9_][a-z0-9_.-]*$' AND length(queue) <= 63),
    ADD CONSTRAINT scheduled_kind_is_a_name CHECK (kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100);

-- What is said of options, and what must be looked at more closely; `enqueue` is what strangers call.
CREATE FUNCTION jobherd.enqueue_with(kind text, payload jsonb, options jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,good_until}';
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
    EXCEPTION WHEN data_exception OR raise_exception THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "%" has a bad value %: %', name, left((wanted -> name)::text, 120), SQLERRM
            USING ERRCODE = 'invalid_parameter_value';
    END;
    IF due > now() THEN
        INSERT INTO jobherd.scheduled (run_at, good_until, timeout, priority, max_attempts, queue, kind, payload)
        VALUES (due, job.good_until, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload)
        RETURNING id INTO job.id;
    ELSE
        INSERT INTO jobherd.ready (run_at, good_until, timeout, priority, max_attempts, queue, kind, payload)
        VALUES (due, job.good_until, job.timeout, job.priority, job.max_attempts, job.queue, job.kind, job.payload)
        RETURNING id INTO job.id;
    END IF;
    RETURN job.id;
END $$;

-- Put one job into the queue, in the caller's transaction. Returns its id.
--   SELECT jobherd.enqueue('mail:receipt', '{"order_id": 7}', '{"delay": "10 minutes", "priority": -5}');
-- Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or an interval),
-- good_until.
-- Without options it does nothing but insert: on an idle machine each expression costs the caller some microseconds.
CREATE OR REPLACE FUNCTION jobherd.enqueue(kind text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    job bigint;
BEGIN
    IF options = '{}' AND pg_column_size(payload) <= 200 AND kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100 THEN
        INSERT INTO jobherd.ready (kind, payload, queue, priority)
        SELECT enqueue.kind, enqueue.payload::json, coalesce(k.queue, 'default'), coalesce(k.priority, 0::smallint)
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = enqueue.kind
        RETURNING id INTO job;
        RETURN job;
    END IF;
    RETURN jobherd.enqueue_with(kind, payload, options);
END $$;

-- Nobody claims from a paused queue; what runs goes on. True if the queue was not paused before.
CREATE OR REPLACE FUNCTION jobherd.pause(queue text, reason text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF queue IS NULL OR queue !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(queue) > 63 THEN
        RAISE EXCEPTION 'jobherd.pause: % is not a queue name', coalesce(quote_literal(left(queue, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower-case letters, digits and _ . - , at most 63 characters.';
    END IF;
    INSERT INTO jobherd.queues AS q (name, paused_at, paused_by, reason) VALUES (pause.queue, clock_timestamp(), session_user, pause.reason)
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason
     WHERE q.paused_at IS NULL;
    RETURN FOUND;
END $$;
