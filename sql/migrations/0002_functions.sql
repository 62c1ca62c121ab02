-- What strangers call. Their signatures are stable: a new option is a new key of `options`, never a new parameter.

-- The path of the first thing in a document that no child should be handed, or null. Only called for a document that
-- looks suspicious: it walks the whole of it.
CREATE FUNCTION jobherd.hostile_path(document jsonb, path text DEFAULT '$', depth integer DEFAULT 1) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found text;
    part  record;
BEGIN
    IF jsonb_typeof(document) IN ('object', 'array') AND depth > 100 THEN
        RETURN path || ': nested deeper than 100 levels';
    ELSIF jsonb_typeof(document) = 'number' AND length(trunc(abs(document::numeric))::text) > 1000 THEN
        RETURN path || ': an integer of more than 1,000 digits';
    ELSIF jsonb_typeof(document) = 'object' THEN
        FOR part IN SELECT key, value FROM jsonb_each(document) LOOP
            found := jobherd.hostile_path(part.value, path || '.' || part.key, depth + 1);
            IF found IS NOT NULL THEN RETURN found; END IF;
        END LOOP;
    ELSIF jsonb_typeof(document) = 'array' THEN
        FOR part IN SELECT ordinality - 1 AS key, value FROM jsonb_array_elements(document) WITH ORDINALITY LOOP
            found := jobherd.hostile_path(part.value, path || '[' || part.key || ']', depth + 1);
            IF found IS NOT NULL THEN RETURN found; END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

-- Put one job into the queue, in the caller's transaction. Returns its id.
--   SELECT jobherd.enqueue('mail:receipt', '{"order_id": 7}', '{"delay": "10 minutes", "priority": -5}');
-- Options: queue, priority, delay (seconds or an interval), run_at, max_attempts, timeout (seconds or an interval),
-- good_until.
CREATE FUNCTION jobherd.enqueue(kind text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS bigint
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
    IF kind IS NULL OR kind !~ '^[a-z0-9_][a-z0-9_.:-]{0,99}$' THEN
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
            FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = enqueue.kind;
        IF job.queue !~ '^[a-z0-9_][a-z0-9_.-]{0,62}$' THEN
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

-- Cancel a job. Answers honestly: 'cancelled' (it waited, it is over), 'cancelling' (it runs and has been told),
-- 'completed', 'failed', 'cancelled', 'expired' (too late), or null (no such job).
CREATE FUNCTION jobherd.cancel(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    WITH waiting AS (
        DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
    ), later AS (
        DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
    ), gone AS (
        SELECT * FROM waiting UNION ALL SELECT * FROM later
    )
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, error_code, error)
    SELECT g.id, g.created_at, g.run_at, clock_timestamp(), current_date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
           g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, 'JOB_CANCELLED', 'cancelled while it waited'
      FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
    RETURNING state INTO answer;
    IF answer IS NULL THEN
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
    RETURN answer;
END $$;

-- Run a job again: at once if it waits for its time, from the start if it is over. Answers 'ready', 'running' (nothing to
-- do), or null (no such job). A job that is over keeps its id and its past; its counts start anew.
CREATE FUNCTION jobherd.retry(job_id bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    WITH later AS (
        DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
    )
    INSERT INTO jobherd.ready
    SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload
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
        INSERT INTO jobherd.ready (id, created_at, run_at, last_error, priority, max_attempts, queue, kind, payload)
        SELECT id, created_at, now(), nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
               priority, max_attempts, queue, kind, payload
          FROM over
        RETURNING 'ready' INTO answer;
    END IF;
    IF answer IS NULL THEN
        SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
    END IF;
    IF answer IS NULL THEN
        SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
    END IF;
    RETURN answer;
END $$;

-- Nobody claims from a paused queue; what runs goes on. True if the queue was not paused before.
CREATE FUNCTION jobherd.pause(queue text, reason text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF queue IS NULL OR queue !~ '^[a-z0-9_][a-z0-9_.-]{0,62}$' THEN
        RAISE EXCEPTION 'jobherd.pause: % is not a queue name', coalesce(quote_literal(left(queue, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower-case letters, digits and _ . - , at most 63 characters.';
    END IF;
    INSERT INTO jobherd.queues AS q (name, paused_at, paused_by, reason) VALUES (pause.queue, clock_timestamp(), session_user, pause.reason)
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason
     WHERE q.paused_at IS NULL;
    RETURN FOUND;
END $$;

-- True if the queue was paused.
CREATE FUNCTION jobherd.resume(queue text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM jobherd.queues WHERE name = resume.queue AND paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM pg_notify('jobherd_jobs', resume.queue);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- Partitions from today to `ahead` days from now, and none whose day is past. Returns how many were made and dropped.
CREATE FUNCTION jobherd.keep_partitions(ahead integer, OUT made integer, OUT dropped integer) LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part   text;
    day    date;
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another keeper is at it
    END IF;
    SET LOCAL lock_timeout = '2s';  -- attaching waits for readers of the default partition; they must not queue behind us
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- A settlement that has chosen the default partition for its row, and waits for the one that is being attached, would be
        -- refused in the end: the default partition may not hold such a row any more. So nobody writes to the parent meanwhile.
        IF EXISTS (SELECT FROM generate_series(1, ahead) AS d
                    WHERE to_regclass('jobherd.' || parent || '_' || to_char(current_date + d, 'YYYYMMDD')) IS NULL) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN SHARE ROW EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT current_date + d FROM generate_series(1, ahead) AS d LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('jobherd.' || part) IS NULL THEN
                -- Rows that fell into the default partition while nobody kept house move to where they belong: the
                -- partition could not be attached over them.
                EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
                EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *) INSERT INTO jobherd.%I SELECT * FROM moved',
                               parent || '_default', day, part);
                EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)', parent, part, day, day + 1);
                made := made + 1;
            END IF;
        END LOOP;
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = ('jobherd.' || parent)::regclass
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) <= to_char(current_date, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on <= current_date', parent || '_default');
    END LOOP;
END $$;

-- Every job, live or past, one row each. Its history is every attempt, the last one included, oldest first.
CREATE VIEW jobherd.jobs AS
SELECT one.id, one.kind, one.queue, one.priority, one.state, one.attempts, one.max_attempts, one.crashes, one.payload, one.result,
       one.error, one.error_code, one.run_at, one.created_at, one.started_at, one.finished_at, one.progress,
       coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at,
                            'error_code', a.error_code, 'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on,
                            'usage', a.usage, 'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token)
                   FROM jobherd.attempts a WHERE a.job = one.id), '[]')
       || CASE WHEN one.finished_at IS NULL THEN '[]' ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', one.attempts, 'outcome', one.state, 'started_at', one.started_at, 'finished_at', one.finished_at,
                            'error_code', one.error_code, 'error', one.error, 'traceback', one.traceback, 'ran_on', one.ran_on,
                            'usage', one.usage, 'post_mortem', one.post_mortem, 'token', one.token))) END AS history,
       one.good_until, one.timeout, one.token, one.ran_on
  FROM (
    SELECT id, kind, queue, priority,
           CASE WHEN attempts > 0 THEN 'retrying' ELSE 'ready' END AS state,
           attempts, coalesce(max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = kind), 5::smallint) AS max_attempts,
           crashes, payload, NULL::json AS result, last_error ->> 'message' AS error, last_error ->> 'code' AS error_code,
           run_at, created_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::jsonb AS progress,
           good_until, timeout, NULL::bigint AS token, NULL::text AS traceback, NULL::text AS ran_on, NULL::jsonb AS usage,
           NULL::jsonb AS post_mortem
      FROM jobherd.ready
    UNION ALL
    SELECT id, kind, queue, priority,
           CASE WHEN attempts > 0 THEN 'retrying' ELSE 'scheduled' END,
           attempts, coalesce(max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = kind), 5::smallint),
           crashes, payload, NULL, last_error ->> 'message', last_error ->> 'code',
           run_at, created_at, NULL, NULL, NULL, good_until, timeout, NULL, NULL, NULL, NULL, NULL
      FROM jobherd.scheduled
    UNION ALL
    SELECT j.id, j.kind, j.queue, j.priority, 'running',
           j.attempts, coalesce(j.max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = j.kind), 5::smallint),
           j.crashes, j.payload, NULL, j.last_error ->> 'message', j.last_error ->> 'code',
           j.run_at, j.created_at, r.claimed_at, NULL,
           (SELECT p.progress FROM jobherd.progress p WHERE p.job = j.id AND p.token = r.token),
           j.good_until, j.timeout, r.token, NULL, (SELECT s.host || '/' || c.pid FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor WHERE c.id = r.child), NULL, NULL
      FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
    UNION ALL
    SELECT id, kind, queue, priority, state,
           attempts, coalesce(max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = kind), 5::smallint),
           crashes, payload, result, error, error_code,
           run_at, created_at, started_at, finished_at, progress, NULL, NULL, token, traceback, ran_on, usage, post_mortem
      FROM jobherd.history
) AS one;
