-- The edges of what a time may be are moments, the same for everybody. As days of the session's time zone they let hours through that the tables refuse,
-- in an error that shows the whole row, payload and all. And a delay that leads beyond them was called the option run_at, of a bad value null.
CREATE OR REPLACE FUNCTION jobherd.enqueue_with(kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL::bytea) RETURNS bigint
    LANGUAGE plpgsql
    AS $_$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,good_until,tenant,webhook,set_off_by,traceparent}';
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
        name := 'good_until';
        job.good_until := (wanted ->> 'good_until')::timestamptz;
        IF NOT isfinite(job.good_until) OR job.good_until <= '1900-01-01 00:00Z' OR job.good_until >= '9000-01-01 00:00Z' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'tenant';
        job.extras.tenant := coalesce(jobherd.check_tenant(wanted ->> 'tenant'), jobherd.default_tenant());
        name := 'webhook';
        job.extras.webhook := jobherd.check_webhook(wanted ->> 'webhook');
        name := 'set_off_by';
        job.extras.set_off_by := (wanted ->> 'set_off_by')::bigint;
        name := 'traceparent';
        job.extras.traceparent := jobherd.check_traceparent(wanted ->> 'traceparent');
        job.extras.payload_bytes := bytes;
        IF job.extras IS NULL THEN
            job.extras := NULL;  -- none of them: the column is null, and not a row of nulls
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
END $_$;

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
