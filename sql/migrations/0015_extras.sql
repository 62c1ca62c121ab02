-- What few jobs have, together in one column that is null for all others: a job without it is as wide as before, and the statements that
-- move jobs name one column more and not three. Whose job it is, who is told of its end, and a payload that is no JSON.
CREATE TYPE jobherd.extras AS (tenant text, webhook text, payload_bytes bytea);
ALTER TABLE jobherd.ready ADD COLUMN extras jobherd.extras;
ALTER TABLE jobherd.scheduled ADD COLUMN extras jobherd.extras;
ALTER TABLE jobherd.history ADD COLUMN extras jobherd.extras;

-- A tenant's role sees, enqueues, cancels and retries jobs of its tenants and no others. Row security guards the tables it writes to,
-- and is switched on by the first grant_tenant: without tenants nobody pays for it. Owner, superusers and roles with BYPASSRLS pass by.
CREATE TABLE jobherd.tenants (
    role   name NOT NULL,
    tenant text NOT NULL COLLATE "C",
    PRIMARY KEY (role, tenant)
);

-- The tenants of whoever asks: the role that was set, else that of the session; a member of a tenant's role counts as that role. It reads
-- what the caller may not read, so it runs as its owner, and who called is asked of the session and not of current_user.
CREATE FUNCTION jobherd.own_tenants() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(DISTINCT t.tenant), '{}')
      FROM jobherd.tenants t JOIN pg_roles r ON r.rolname = t.role
     WHERE pg_has_role(coalesce(nullif(current_setting('role', true), 'none'), session_user)::name, r.oid, 'USAGE')
$$;

-- The tenant of a job whose tenant was not named: that of the caller, if row security holds for it. One that has several must say which.
CREATE FUNCTION jobherd.default_tenant() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN row_security_active('jobherd.ready'::regclass) AND cardinality(jobherd.own_tenants()) = 1 THEN (jobherd.own_tenants())[1] END
$$;

CREATE POLICY own_tenant ON jobherd.ready USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]));
CREATE POLICY own_tenant ON jobherd.scheduled USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]));
CREATE POLICY own_tenant ON jobherd.history USING ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[]));

CREATE FUNCTION jobherd.check_tenant(tenant text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF tenant !~ '^[A-Za-z0-9_][A-Za-z0-9_.:@-]*$' OR length(tenant) > 100 THEN
        RAISE EXCEPTION 'jobherd: % is not the name of a tenant', quote_literal(left(tenant, 120))
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Letters, digits and _ . : @ - , at most 100 characters.';
    END IF;
    RETURN tenant;
END $$;

-- Make a role a tenant's. Run by the owner of the schema. True if it was not yet.
CREATE FUNCTION jobherd.grant_tenant(role name, tenant text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF grant_tenant.role IS NULL OR grant_tenant.tenant IS NULL OR NOT EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: there is no role %', coalesce(quote_ident(grant_tenant.role), 'null')
            USING ERRCODE = 'undefined_object', HINT = 'CREATE ROLE it first.';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = grant_tenant.role AND (rolsuper OR rolbypassrls)) THEN
        RAISE EXCEPTION 'jobherd.grant_tenant: role % is a superuser or has BYPASSRLS, so nothing can keep it to its tenant', quote_ident(grant_tenant.role)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Take another role.';
    END IF;
    PERFORM jobherd.check_tenant(grant_tenant.tenant);
    EXECUTE format('GRANT USAGE ON SCHEMA jobherd TO %I', grant_tenant.role);
    EXECUTE format('GRANT SELECT, INSERT ON jobherd.ready, jobherd.scheduled TO %I', grant_tenant.role);
    EXECUTE format('GRANT SELECT ON jobherd.kinds, jobherd.tenant_jobs TO %I', grant_tenant.role);
    EXECUTE format('GRANT USAGE ON SEQUENCE jobherd.job_ids TO %I', grant_tenant.role);
    IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = 'jobherd.ready'::regclass) THEN
        ALTER TABLE jobherd.ready ENABLE ROW LEVEL SECURITY;
        ALTER TABLE jobherd.scheduled ENABLE ROW LEVEL SECURITY;
        ALTER TABLE jobherd.history ENABLE ROW LEVEL SECURITY;
    END IF;
    INSERT INTO jobherd.tenants (role, tenant) VALUES (grant_tenant.role, grant_tenant.tenant) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Take it back. Privileges stay until the last tenant of the role is taken; without a tenant they show and allow nothing anyway.
CREATE FUNCTION jobherd.revoke_tenant(role name, tenant text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_one boolean;
BEGIN
    DELETE FROM jobherd.tenants t WHERE t.role = revoke_tenant.role AND t.tenant = revoke_tenant.tenant;
    found_one := FOUND;
    IF found_one AND NOT EXISTS (SELECT FROM jobherd.tenants t WHERE t.role = revoke_tenant.role)
       AND EXISTS (SELECT FROM pg_roles WHERE rolname = revoke_tenant.role) THEN
        EXECUTE format('REVOKE ALL ON jobherd.ready, jobherd.scheduled, jobherd.kinds, jobherd.tenant_jobs FROM %I', revoke_tenant.role);
        EXECUTE format('REVOKE ALL ON SEQUENCE jobherd.job_ids FROM %I', revoke_tenant.role);
        EXECUTE format('REVOKE ALL ON SCHEMA jobherd FROM %I', revoke_tenant.role);
    END IF;
    RETURN found_one;
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
    octet_length((extras).payload_bytes) || ' bytes, ' || encode(substr((extras).payload_bytes, 1, 16), 'hex')
        || CASE WHEN octet_length((extras).payload_bytes) > 16 THEN '...' ELSE '' END AS payload_bytes
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
            NULL::json,
            (scheduled.last_error ->> 'message'::text),
            (scheduled.last_error ->> 'code'::text),
            scheduled.run_at,
            scheduled.created_at,
            NULL::timestamp with time zone,
            NULL::timestamp with time zone,
            NULL::jsonb,
            scheduled.good_until,
            scheduled.timeout,
            NULL::bigint,
            NULL::text,
            NULL::text,
            NULL::jsonb,
            NULL::jsonb, scheduled.extras
           FROM jobherd.scheduled
        UNION ALL
         SELECT j.id,
            j.kind,
            j.queue,
            j.priority,
            'running'::text,
            j.attempts,
            COALESCE(j.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = j.kind)), (5)::smallint) AS "coalesce",
            j.crashes,
            j.payload,
            NULL::json,
            (j.last_error ->> 'message'::text),
            (j.last_error ->> 'code'::text),
            j.run_at,
            j.created_at,
            r.claimed_at,
            NULL::timestamp with time zone,
            ( SELECT p.progress
                   FROM jobherd.progress p
                  WHERE ((p.job = j.id) AND (p.token = r.token))) AS progress,
            j.good_until,
            j.timeout,
            r.token,
            NULL::text,
            ( SELECT ((s.host || '/'::text) || c.pid)
                   FROM (jobherd.children c
                     JOIN jobherd.supervisors s ON ((s.id = c.supervisor)))
                  WHERE (c.id = r.child)),
            NULL::jsonb,
            NULL::jsonb, j.extras
           FROM (jobherd.running r
             CROSS JOIN LATERAL unnest(r.jobs) j)
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
            NULL::timestamp with time zone,
            NULL::double precision,
            history.token,
            history.traceback,
            history.ran_on,
            history.usage,
            history.post_mortem, history.extras
           FROM jobherd.history) one;

-- What a tenant sees of jobs. The barrier keeps a condition of the caller's own from being asked of rows that are not the caller's.
CREATE VIEW jobherd.tenant_jobs WITH (security_barrier) AS
SELECT * FROM jobherd.jobs WHERE tenant = ANY ((SELECT jobherd.own_tenants())::text[]);

DROP FUNCTION jobherd.enqueue_with(text, jsonb, jsonb);
CREATE FUNCTION jobherd.enqueue_with(kind text, payload jsonb, options jsonb, bytes bytea DEFAULT NULL) RETURNS bigint
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
        job.extras.webhook := wanted ->> 'webhook';
        IF (job.extras).webhook !~* '^https?://[^/?#@[:space:][:cntrl:]]+([/?][^[:space:][:cntrl:]]*)?$' OR length((job.extras).webhook) > 2000 THEN
            RAISE EXCEPTION 'must be a URL like https://example.com/done, without a user, at most 2000 characters';
        END IF;
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

CREATE OR REPLACE FUNCTION jobherd.enqueue(kind text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    job bigint;
BEGIN
    IF options = '{}' AND NOT row_security_active('jobherd.ready'::regclass) AND pg_column_size(payload) <= 200
       AND kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100 THEN
        INSERT INTO jobherd.ready (kind, payload, queue, priority)
        SELECT enqueue.kind, enqueue.payload::json, coalesce(k.queue, 'default'), coalesce(k.priority, 0::smallint)
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = enqueue.kind
        RETURNING id INTO job;
        RETURN job;
    END IF;
    RETURN jobherd.enqueue_with(kind, payload, options);
END $$;

-- A job whose payload is no JSON: bytes that nobody looks into. What belongs beside them may stand in `payload`.
CREATE FUNCTION jobherd.enqueue_bytes(kind text, payload_bytes bytea, options jsonb DEFAULT '{}', payload jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF payload_bytes IS NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue_bytes: payload_bytes must not be null'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give an empty bytea, or call jobherd.enqueue.';
    END IF;
    RETURN jobherd.enqueue_with(kind, payload, options, payload_bytes);
END $$;

CREATE OR REPLACE FUNCTION jobherd.cancel(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    IF row_security_active('jobherd.ready'::regclass) THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), current_date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            PERFORM pg_notify('jobherd_done', job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                answer := 'cancelling';
                PERFORM pg_notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    IF row_security_active('jobherd.ready'::regclass) THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at, current_date + 30, error_code, error, traceback, ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    RETURN answer;
END $$;

-- cancel for a tenant, which may write none of the tables that this takes. A job of another tenant is none at all.
CREATE FUNCTION jobherd.cancel_own(job_id bigint) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = job_id AND j.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.cancel(job_id);
    END IF;
    RETURN NULL;
END $$;

-- retry for a tenant, which may write none of the tables that this takes. A job of another tenant is none at all.
CREATE FUNCTION jobherd.retry_own(job_id bigint) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = job_id AND j.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.retry(job_id);
    END IF;
    RETURN NULL;
END $$;
