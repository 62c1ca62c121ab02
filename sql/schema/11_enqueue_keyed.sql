-- Unique jobs whose second enqueue changes the first: replaced, collected, debounced and throttled jobs.

-- Enqueues jobs of one kind, or changes the jobs that wait under their keys. Returns for each payload the id of
-- its job, and whether the job is new. The parameters are those of jobherd.enqueue_unique. A job that has
-- started is not changed: a new job takes its key.
--
-- rule: `conflict`, replace (the waiting job gets payload and options) or collect (the list in the field `collect`
-- of the payload is appended to that of the waiting job, up to 10,000 items and 1,000,000 bytes). `debounce`:
-- the job becomes due so many seconds from now, at most `max_wait` seconds after it was enqueued. `keep`: true
-- if a changed job keeps its time.
--
-- Each key is locked until the transaction ends, in the order of the keys. A waiting job may move between two
-- statements, so it is searched again until one snapshot says that it does not wait. It is deleted and inserted,
-- not updated: the trigger that moves maintenance processes' timers fires for inserts.
CREATE FUNCTION jobherd.enqueue_keyed(
    kind text, payloads text[], rule jsonb, names text[] DEFAULT NULL, paths text[] DEFAULT NULL,
    keys text[] DEFAULT NULL, run_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    timeout double precision DEFAULT NULL, priority smallint DEFAULT 0, max_attempts smallint DEFAULT NULL,
    queue text DEFAULT 'default', tenant text DEFAULT NULL, webhook text DEFAULT NULL,
    payload_bytes bytea DEFAULT NULL, parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL
)
RETURNS TABLE (place integer, id bigint, new boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    jobs     CONSTANT integer := cardinality(payloads);
    what     CONSTANT text := kind;
    due      CONSTANT timestamptz := coalesce(run_at, now());
    pause    CONSTANT interval := make_interval(secs => (rule ->> 'debounce')::double precision);
    patience CONSTANT interval := make_interval(secs => (rule ->> 'max_wait')::double precision);
    lasts    CONSTANT timestamptz := now() + make_interval(secs => (rule ->> 'for')::double precision);
    field    CONSTANT text := rule ->> 'collect';
    one_key  CONSTANT text := rule ->> 'key';
    bytes    CONSTANT bytea := payload_bytes;
    head     CONSTANT text := left(jsonb_build_array(
                 kind, tenant, CASE WHEN (rule -> 'queue')::boolean THEN queue END,
                 CASE WHEN keys IS NOT NULL THEN 'secret' WHEN rule ? 'key' THEN 'key'
                      WHEN names IS NOT NULL THEN 'by' ELSE 'payload' END)::text, -1) || ', ';
    divided  text[];
    confined boolean := false;
    hidden   boolean;
    one      record;
    number   bigint;
    held     timestamptz;
    job      jobherd.ready;
    fresh    jobherd.ready;
    body     text;
BEGIN
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        PERFORM jobherd.check_producer(kind, tenant);
        confined := jobherd.is_tenant();
    END IF;
    IF (rule ->> 'conflict' = 'replace' OR rule ->> 'conflict' = 'collect' AND field IS NOT NULL) IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd.enqueue_keyed: conflict is replace, or collect with a field'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    hidden := keys IS NOT NULL
              OR (one_key IS NULL AND EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = what AND k.redact <> '[]'));
    SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = what;
    fresh.created_at := now();
    fresh.run_at := due;
    fresh.expires_at := expires_at;
    fresh.timeout := timeout;
    fresh.priority := priority;
    fresh.attempts := 0;
    fresh.max_attempts := max_attempts;
    fresh.crashes := 0;
    fresh.alone := false;
    fresh.queue := queue;
    fresh.kind := kind;
    fresh.extras := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), bytes, parent_id, jobherd.check_traceparent(traceparent));
    FOR one IN
        SELECT p.place, p.payload, p.part, sha256(convert_to(head || p.part || ']', 'UTF8')) AS key
          FROM (SELECT a.place, a.payload,
                       jobherd.unique_part(a.payload, coalesce(a.key, one_key), names, paths, bytes)::text AS part
                  FROM ROWS FROM (unnest(payloads), unnest(keys), generate_series(1, jobs)) AS a (payload, key, place)
                OFFSET 0) AS p
         ORDER BY 4, 1
    LOOP
        place := one.place;
        fresh.id := nextval('jobherd.job_ids');
        fresh.payload := one.payload::json;
        fresh.extras.unique_key := one.key;
        fresh.extras.partition := jobherd.partition_of(rule ->> 'partition', divided, fresh.payload, tenant, confined);
        fresh.lane := jobherd.lane_of((fresh.extras).partition);
        INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown)
        VALUES (one.key, fresh.id, lasts, 'waiting', what,
                CASE WHEN NOT hidden THEN left(coalesce(one_key, one.part), 200) END)
        ON CONFLICT (key) DO UPDATE SET job = k.job
        RETURNING k.job, k.until INTO id, held;
        new := id = fresh.id;
        job := NULL;
        WHILE NOT new LOOP
            DELETE FROM jobherd.ready r WHERE r.id = id AND r.attempts = 0 RETURNING r.* INTO job;
            IF NOT FOUND THEN
                DELETE FROM jobherd.parked r WHERE r.id = id AND r.attempts = 0 RETURNING r.* INTO job;
            END IF;
            IF NOT FOUND THEN
                DELETE FROM jobherd.scheduled r WHERE r.id = id AND r.attempts = 0 RETURNING r.* INTO job;
            END IF;
            EXIT WHEN job.id IS NOT NULL OR NOT jobherd.holds_key(id, NULL, 'waiting');
        END LOOP;
        IF job.id IS NOT NULL THEN
            body := NULL;
            IF field IS NULL THEN
                body := one.payload;
                job.queue := fresh.queue;
                job.priority := fresh.priority;
                job.timeout := fresh.timeout;
                job.expires_at := fresh.expires_at;
                job.max_attempts := fresh.max_attempts;
                job.extras := fresh.extras;
                job.lane := fresh.lane;
            ELSIF jsonb_typeof(job.payload::jsonb -> field) = 'array' AND jsonb_typeof(one.payload::jsonb -> field) = 'array'
                  AND jsonb_array_length(job.payload::jsonb -> field) + jsonb_array_length(one.payload::jsonb -> field)
                      <= 10000 THEN
                body := jsonb_set(job.payload::jsonb, ARRAY[field],
                                  (job.payload::jsonb -> field) || (one.payload::jsonb -> field))::text;
                IF octet_length(body) > 1000000 THEN
                    body := NULL;
                END IF;
            END IF;
            IF body IS NOT NULL THEN
                job.payload := body::json;
                IF pause IS NOT NULL THEN
                    job.run_at := least(now() + pause, job.created_at + patience);
                ELSIF field IS NULL AND (rule -> 'keep')::boolean IS NOT TRUE THEN
                    job.run_at := due;
                END IF;
            END IF;
            IF job.run_at > clock_timestamp() THEN
                INSERT INTO jobherd.scheduled SELECT job.*;
            ELSE
                job.run_at := greatest(job.run_at, job.created_at + interval '1 microsecond');  -- see the index ready_came_back
                INSERT INTO jobherd.ready SELECT job.*;
            END IF;
            new := body IS NULL;  -- its list is full: the new job takes the key
        ELSIF NOT new THEN
            new := (held > clock_timestamp()) IS NOT TRUE;
        END IF;
        IF new THEN
            IF id <> fresh.id THEN
                UPDATE jobherd.keys k
                   SET job = fresh.id, until = lasts, during = 'waiting',
                       shown = CASE WHEN NOT hidden THEN left(coalesce(one_key, one.part), 200) END
                 WHERE k.key = one.key;
                id := fresh.id;
            END IF;
            IF due > now() THEN
                INSERT INTO jobherd.scheduled SELECT fresh.*;
            ELSE
                INSERT INTO jobherd.ready SELECT fresh.*;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION jobherd.enqueue_keyed IS
    'Enqueues jobs of one kind, or replaces, extends or delays the jobs that wait under their keys. Returns for each '
    'payload the id of its job, and whether the job is new.';
