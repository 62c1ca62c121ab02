-- Where a job comes from: the job whose handler enqueued it, and the trace it belongs to (W3C Trace Context). Both go with what few jobs
-- have, so a job with neither is as wide as before, and no statement that moves jobs names a column more. A composite type in use may
-- grow by an attribute: it is null in whatever was written before, and no table is rewritten.
ALTER TYPE jobherd.extras ADD ATTRIBUTE set_off_by bigint, ADD ATTRIBUTE traceparent text;

-- What it set off is found by index, in order; a job that nobody set off has no entry in it. A running one is found without.
CREATE INDEX ready_set_off ON jobherd.ready (((extras).set_off_by), id) WHERE (extras).set_off_by IS NOT NULL;
CREATE INDEX parked_set_off ON jobherd.parked (((extras).set_off_by), id) WHERE (extras).set_off_by IS NOT NULL;
CREATE INDEX scheduled_set_off ON jobherd.scheduled (((extras).set_off_by), id) WHERE (extras).set_off_by IS NOT NULL;
CREATE INDEX history_set_off ON jobherd.history (((extras).set_off_by), id) WHERE (extras).set_off_by IS NOT NULL;

-- Null for a job that has none of it. Clients of ours call it by names and never write the type out, so that it may grow again without
-- refusing those that are older.
CREATE FUNCTION jobherd.extras_of(tenant text, webhook text, payload_bytes bytea, set_off_by bigint DEFAULT NULL, traceparent text DEFAULT NULL)
RETURNS jobherd.extras LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF num_nonnulls(tenant, webhook, payload_bytes, set_off_by, traceparent) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN ROW(tenant, webhook, payload_bytes, set_off_by, traceparent)::jobherd.extras;
END $$;

-- The whole form of version 00, by which every later version begins; all zeros and version ff are none.
CREATE FUNCTION jobherd.check_traceparent(traceparent text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' OR traceparent ~ '^ff|^..-0{32}|-0{16}-..$' THEN
        RAISE EXCEPTION 'must be like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN traceparent;
END $$;

-- A call is set off by the job whose end it tells.
CREATE OR REPLACE FUNCTION jobherd.call_webhook() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO jobherd.ready (kind, queue, priority, payload, extras)
    VALUES ('jobs:webhook', NEW.queue, NEW.priority,
            json_build_object(
                'url', (NEW.extras).webhook,
                'event', json_build_object(
                    'id', NEW.id, 'kind', NEW.kind, 'queue', NEW.queue, 'tenant', (NEW.extras).tenant, 'state', NEW.state,
                    'code', NEW.error_code, 'attempts', NEW.attempts, 'created_at', NEW.created_at, 'finished_at', NEW.finished_at,
                    'result', CASE WHEN octet_length(NEW.result::text) <= 10000 THEN NEW.result END,
                    'result_omitted', coalesce(octet_length(NEW.result::text) > 10000, false))),
            jobherd.extras_of((NEW.extras).tenant, NULL, NULL, NEW.id, (NEW.extras).traceparent));
    RETURN NULL;
END $$;

CREATE OR REPLACE VIEW jobherd.jobs AS
 SELECT id,
    kind,
    queue,
    priority,
    state,
    attempts,
    max_attempts,
    crashes,
    payload,
    result,
    error,
    error_code,
    run_at,
    created_at,
    started_at,
    finished_at,
    progress,
    (COALESCE(( SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at, 'error_code', a.error_code, 'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on, 'usage', a.usage, 'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token) AS jsonb_agg
           FROM jobherd.attempts a
          WHERE (a.job = one.id)), '[]'::jsonb) ||
        CASE
            WHEN (finished_at IS NULL) THEN '[]'::jsonb
            ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('attempt', attempts, 'outcome', state, 'started_at', started_at, 'finished_at', finished_at, 'error_code', error_code, 'error', error, 'traceback', traceback, 'ran_on', ran_on, 'usage', usage, 'post_mortem', post_mortem, 'token', token)))
        END) AS history,
    good_until,
    timeout,
    token,
    ran_on,
    (extras).tenant AS tenant,
    (extras).webhook AS webhook,
    (((octet_length((extras).payload_bytes) || ' bytes, '::text) || encode(substr((extras).payload_bytes, 1, 16), 'hex'::text)) ||
        CASE
            WHEN (octet_length((extras).payload_bytes) > 16) THEN '...'::text
            ELSE ''::text
        END) AS payload_bytes,
    (extras).set_off_by AS set_off_by,
    (extras).traceparent AS traceparent
   FROM ( SELECT ready.id,
            ready.kind,
            ready.queue,
            ready.priority,
                CASE
                    WHEN (ready.attempts > 0) THEN 'retrying'::text
                    ELSE 'ready'::text
                END AS state,
            ready.attempts,
            COALESCE(ready.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = ready.kind)), (5)::smallint) AS max_attempts,
            ready.crashes,
            ready.payload,
            NULL::json AS result,
            (ready.last_error ->> 'message'::text) AS error,
            (ready.last_error ->> 'code'::text) AS error_code,
            ready.run_at,
            ready.created_at,
            NULL::timestamp with time zone AS started_at,
            NULL::timestamp with time zone AS finished_at,
            NULL::jsonb AS progress,
            ready.good_until,
            ready.timeout,
            NULL::bigint AS token,
            NULL::text AS traceback,
            NULL::text AS ran_on,
            NULL::jsonb AS usage,
            NULL::jsonb AS post_mortem,
            ready.extras
           FROM jobherd.ready
        UNION ALL
         SELECT scheduled.id,
            scheduled.kind,
            scheduled.queue,
            scheduled.priority,
                CASE
                    WHEN (scheduled.attempts > 0) THEN 'retrying'::text
                    ELSE 'scheduled'::text
                END AS "case",
            scheduled.attempts,
            COALESCE(scheduled.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = scheduled.kind)), (5)::smallint) AS "coalesce",
            scheduled.crashes,
            scheduled.payload,
            NULL::json AS "json",
            (scheduled.last_error ->> 'message'::text),
            (scheduled.last_error ->> 'code'::text),
            scheduled.run_at,
            scheduled.created_at,
            NULL::timestamp with time zone AS timestamptz,
            NULL::timestamp with time zone AS timestamptz,
            NULL::jsonb AS jsonb,
            scheduled.good_until,
            scheduled.timeout,
            NULL::bigint AS int8,
            NULL::text AS text,
            NULL::text AS text,
            NULL::jsonb AS jsonb,
            NULL::jsonb AS jsonb,
            scheduled.extras
           FROM jobherd.scheduled
        UNION ALL
         SELECT j.id,
            j.kind,
            j.queue,
            j.priority,
            'running'::text AS text,
            j.attempts,
            COALESCE(j.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = j.kind)), (5)::smallint) AS "coalesce",
            j.crashes,
            j.payload,
            NULL::json AS "json",
            (j.last_error ->> 'message'::text),
            (j.last_error ->> 'code'::text),
            j.run_at,
            j.created_at,
            r.claimed_at,
            NULL::timestamp with time zone AS timestamptz,
            ( SELECT p.progress
                   FROM jobherd.progress p
                  WHERE ((p.job = j.id) AND (p.token = r.token))) AS progress,
            j.good_until,
            j.timeout,
            r.token,
            NULL::text AS text,
            ( SELECT ((s.host || '/'::text) || c.pid)
                   FROM (jobherd.children c
                     JOIN jobherd.supervisors s ON ((s.id = c.supervisor)))
                  WHERE (c.id = r.child)),
            NULL::jsonb AS jsonb,
            NULL::jsonb AS jsonb,
            j.extras
           FROM (jobherd.running r
             CROSS JOIN LATERAL unnest(r.jobs) j(id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras))
        UNION ALL
         SELECT history.id,
            history.kind,
            history.queue,
            history.priority,
            history.state,
            history.attempts,
            COALESCE(history.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = history.kind)), (5)::smallint) AS "coalesce",
            history.crashes,
            history.payload,
            history.result,
            history.error,
            history.error_code,
            history.run_at,
            history.created_at,
            history.started_at,
            history.finished_at,
            history.progress,
            NULL::timestamp with time zone AS timestamptz,
            NULL::double precision AS float8,
            history.token,
            history.traceback,
            history.ran_on,
            history.usage,
            history.post_mortem,
            history.extras
           FROM jobherd.history) one;

CREATE OR REPLACE VIEW jobherd.tenant_jobs WITH (security_barrier) AS
SELECT * FROM jobherd.jobs WHERE tenant = ANY ((SELECT jobherd.own_tenants())::text[]);

CREATE OR REPLACE FUNCTION jobherd.enqueue_with(kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
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
END $$;

-- Run a job of the past again with another payload: a new job with what the old one had, which stays as it was and has set the new one off.
-- Returns the new one's id, or null if there is no such job of the past. Of options, time limits are not kept with the past: the new job has its
-- kind's. For operators: a tenant's role may not.
CREATE FUNCTION jobherd.retry_edited(job_id bigint, payload jsonb, actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    old    jobherd.history;
    number bigint;
BEGIN
    SELECT * INTO old FROM jobherd.history h WHERE h.id = job_id ORDER BY h.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    number := jobherd.enqueue_with(old.kind, retry_edited.payload, jsonb_strip_nulls(jsonb_build_object(
        'queue', old.queue, 'priority', old.priority, 'max_attempts', old.max_attempts, 'tenant', (old.extras).tenant,
        'webhook', (old.extras).webhook, 'set_off_by', old.id, 'traceparent', (old.extras).traceparent)), (old.extras).payload_bytes);
    INSERT INTO jobherd.demands (job, cost) SELECT number, d.cost FROM jobherd.demands d WHERE d.job = old.id;
    PERFORM jobherd.note_unless_noted(actor, 'edit', jsonb_build_object('job', old.id, 'new', number), reason);
    RETURN number;
END $$;
