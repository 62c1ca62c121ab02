-- Unique jobs at less cost, with fewer statements, calls and copies of rows, and with partitions: a partition that the
-- jobs name is in their rule, `partition`. The keys are those of 0007_unique_jobs.sql and 0011_keyed_jobs.sql.

-- Returns the holder of a key that this transaction has locked. VOLATILE: the statement that waited for the
-- lock does not see the job that another transaction has committed since.
CREATE FUNCTION jobherd.holder_of(key bytea)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT k.job FROM jobherd.keys k WHERE k.key = holder_of.key);
END $$;

-- Enqueues jobs of one kind, each unless a job holds its key. Returns for each payload the id of its job,
-- and whether the job is new. A tenant's role may write none of the keys, so it runs as the owner.
--
-- names, paths: the fields of the payload that count, such as {$.doc.id} and {"{doc,id}"}; null: the whole
-- payload counts. keys: a text for each job instead, from producers that encrypt.
-- rule: `key`, one text for all jobs instead of their payloads; `queue`, true if each queue has its own keys;
-- `during`: live, waiting or never; `for`: seconds for which a job counts in any case; `conflict`: ignore or
-- raise. With raise nothing is enqueued if one of the jobs is not new.
--
-- A duplicate that is found by the first look writes and locks nothing. The other keys are taken in order,
-- so two calls cannot deadlock. A second caller waits for the first to commit or roll back, and decides then.
--
-- Cost: a key is the hash of a text, and the text of a JSON array is `head`, the text of its last member, and `]`.
-- So no array is built for each job. The column `payload` is json, of which a field is read without parsing the rest
-- into jsonb.
CREATE OR REPLACE FUNCTION jobherd.enqueue_unique(
    kind text, payloads text[], rule jsonb, names text[] DEFAULT NULL, paths text[] DEFAULT NULL,
    keys text[] DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, timeout double precision DEFAULT NULL, priority smallint DEFAULT 0,
    max_attempts smallint DEFAULT NULL, queue text DEFAULT 'default', tenant text DEFAULT NULL,
    webhook text DEFAULT NULL, payload_bytes bytea DEFAULT NULL, parent_id bigint DEFAULT NULL,
    traceparent text DEFAULT NULL
)
RETURNS TABLE (place integer, id bigint, new boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    lives  CONSTANT text := coalesce(rule ->> 'during', 'live');
    -- the last word: a field called `key` and the text of a key are not the same
    head   CONSTANT text := left(jsonb_build_array(
               kind, tenant, CASE WHEN (rule -> 'queue')::boolean THEN queue END,
               CASE WHEN keys IS NOT NULL THEN 'secret' WHEN rule ? 'key' THEN 'key'
                    WHEN names IS NOT NULL THEN 'by' ELSE 'payload' END)::text, -1) || ', ';
    common jobherd.extras;
    part   text;
    field  text;
    path   text[];
    divided  text[];                                -- path to the partition, as the kind declares it
    confined boolean := false;
    hidden boolean;
    hash   bytea;
    moment timestamptz;
    due    timestamptz;
    ids    bigint[];
    news   boolean[];
BEGIN
    -- Cost: the owner, without SET ROLE, may do everything. The function is not called then.
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        PERFORM jobherd.check_producer(kind, tenant);
        confined := jobherd.is_tenant();
    END IF;
    IF lives <> ALL ('{live,waiting,never}') OR payloads IS NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue_unique: during is live, waiting or never, not %', quote_literal(left(lives, 40))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF cardinality(payloads) = 1 THEN
        part := CASE WHEN keys IS NULL AND rule ? 'key' THEN jsonb_build_object('key', rule ->> 'key')::text
                     WHEN keys IS NULL AND cardinality(names) = 1
                     THEN '{' || to_json(names[1])::text || ': '
                          || coalesce((payloads[1]::json #> paths[1]::text[])::jsonb::text, 'null') || '}'
                     ELSE jobherd.unique_part(payloads[1], keys[1], names, paths, payload_bytes)::text END;
        hash := sha256(convert_to(head || part || ']', 'UTF8'));
        SELECT k.job INTO id FROM jobherd.keys k
         WHERE k.key = hash
           AND (k.until > clock_timestamp()
                OR lives <> 'never'
               AND ((SELECT lives = 'live' OR r.attempts = 0 FROM jobherd.ready r WHERE r.id = k.job)
                    OR (SELECT lives = 'live' OR s.attempts = 0 FROM jobherd.scheduled s WHERE s.id = k.job)
                    OR (SELECT lives = 'live' OR p.attempts = 0 FROM jobherd.parked p WHERE p.id = k.job)
                    OR lives = 'live' AND k.job IN (SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j)));
        new := false;
        IF id IS NULL THEN
            INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown)
            VALUES (hash, nextval('jobherd.job_ids'), now() + make_interval(secs => (rule ->> 'for')::double precision), lives, kind,
                    CASE WHEN keys IS NOT NULL THEN NULL
                         WHEN rule ? 'key' THEN left(rule ->> 'key', 200)
                         WHEN NOT EXISTS (SELECT FROM jobherd.kinds d WHERE d.name = enqueue_unique.kind AND d.redact <> '[]')
                         THEN left(part, 200) END)
            ON CONFLICT (key) DO UPDATE
               SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown
             WHERE NOT jobherd.holds_key(k.job, k.until, lives)
            RETURNING k.job INTO id;
            IF id IS NULL THEN  -- another transaction has committed a job since; the row is locked now
                id := jobherd.holder_of(hash);
            ELSE
                -- Cost: most jobs have nothing but the key, which is an assignment without a call.
                IF num_nonnulls(tenant, webhook, payload_bytes, parent_id, traceparent) > 0 THEN
                    common := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), payload_bytes, parent_id,
                                                jobherd.check_traceparent(traceparent));
                END IF;
                IF lives <> 'never' THEN
                    common.unique_key := hash;
                END IF;
                SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = enqueue_unique.kind;
                IF confined OR divided IS NOT NULL OR rule ? 'partition' THEN
                    common.partition := jobherd.partition_of(rule ->> 'partition', divided, payloads[1]::json, tenant, confined);
                END IF;
                IF run_at > now() THEN
                    INSERT INTO jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                                   extras, lane)
                    VALUES (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payloads[1]::json, common,
                            jobherd.lane_of(common.partition));
                ELSE
                    INSERT INTO jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                               extras, lane)
                    VALUES (id, coalesce(run_at, now()), expires_at, timeout, priority, max_attempts, queue, kind, payloads[1]::json,
                            common, jobherd.lane_of(common.partition));
                END IF;
                new := true;
            END IF;
        END IF;
        place := 1;
        RETURN NEXT;
        RETURN;
    END IF;
    IF rule ->> 'conflict' = 'raise' THEN
        BEGIN
            SELECT array_agg(u.id ORDER BY u.place), array_agg(u.new ORDER BY u.place) INTO ids, news
              FROM jobherd.enqueue_unique(kind, payloads, rule - 'conflict', names, paths, keys, run_at, expires_at, timeout, priority,
                                          max_attempts, queue, tenant, webhook, payload_bytes, parent_id, traceparent) AS u;
            IF false = ANY (news) THEN
                RAISE SQLSTATE 'JH001';  -- to undo everything that it has written
            END IF;
        EXCEPTION WHEN SQLSTATE 'JH001' THEN
            -- the id of another payload in this call is that of a job that does not exist now
            ids := array(SELECT CASE WHEN NOT a.new AND a.id NOT IN (SELECT b.id FROM unnest(ids, news) AS b (id, new) WHERE b.new)
                                     THEN a.id END
                           FROM unnest(ids, news) WITH ORDINALITY AS a (id, new, place) ORDER BY a.place);
            news := array_fill(false, ARRAY[cardinality(payloads)]);
        END;
        RETURN QUERY SELECT a.place::integer, a.id, a.new FROM unnest(ids, news) WITH ORDINALITY AS a (id, new, place)
                      ORDER BY a.id IS NULL, a.place;
        RETURN;
    END IF;
    hidden := keys IS NOT NULL
              OR (NOT rule ? 'key' AND EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = enqueue_unique.kind AND k.redact <> '[]'));
    IF keys IS NULL AND rule ? 'key' THEN
        part := jsonb_build_object('key', rule ->> 'key')::text;
    ELSIF keys IS NULL AND cardinality(names) = 1 THEN
        field := '{' || to_json(names[1])::text || ': ';
        path := paths[1]::text[];
    END IF;
    SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = enqueue_unique.kind;
    moment := clock_timestamp();
    due := coalesce(run_at, now());
    webhook := jobherd.check_webhook(webhook);
    traceparent := jobherd.check_traceparent(traceparent);
    RETURN QUERY
    WITH ranked AS MATERIALIZED (
        -- the first of each key gets it: it is the one whose `id` is `first`
        SELECT a.place, a.payload, a.key, a.shown, a.holder, a.id,
               first_value(a.id) OVER (PARTITION BY a.key ORDER BY a.place) AS first
          FROM (SELECT s.place, s.payload, s.key, s.shown, h.job AS holder,
                       CASE WHEN h.job IS NULL THEN nextval('jobherd.job_ids') END AS id  -- in the order of the payloads
                  FROM (SELECT p.place, p.payload, sha256(convert_to(head || p.part || ']', 'UTF8')) AS key,
                               CASE WHEN NOT hidden THEN left(coalesce(rule ->> 'key', p.part), 200) END AS shown
                          FROM (SELECT g.place, g.payload,
                                       CASE WHEN part IS NOT NULL THEN part
                                            WHEN field IS NOT NULL
                                            THEN field || coalesce((g.payload #> path)::jsonb::text, 'null') || '}'
                                            ELSE jobherd.unique_part(g.payload::text, g.word, names, paths, payload_bytes)::text
                                       END AS part
                                  FROM (SELECT u.place::integer AS place, u.payload::json AS payload, u.word
                                          FROM unnest(payloads, keys) WITH ORDINALITY AS u (payload, word, place)
                                        OFFSET 0) AS g
                                OFFSET 0) AS p
                        OFFSET 0) AS s
                  LEFT JOIN LATERAL (
                       SELECT k.job FROM jobherd.keys k
                        WHERE k.key = s.key
                          AND (k.until > moment
                               OR lives <> 'never'
                              -- Cost: not EXISTS, for which the planner may read the whole table into a hash
                              AND ((SELECT lives = 'live' OR r.attempts = 0 FROM jobherd.ready r WHERE r.id = k.job)
                                   OR (SELECT lives = 'live' OR w.attempts = 0 FROM jobherd.scheduled w WHERE w.id = k.job)
                                   OR (SELECT lives = 'live' OR q.attempts = 0 FROM jobherd.parked q WHERE q.id = k.job)
                                   OR lives = 'live' AND k.job IN (SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j)))
                        LIMIT 1) AS h ON true
                OFFSET 0) AS a
    ), won AS (
        INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown)
        SELECT r.key, r.id, now() + make_interval(secs => (rule ->> 'for')::double precision), lives, enqueue_unique.kind, r.shown
          FROM ranked r
         WHERE r.id = r.first
         ORDER BY r.key
        ON CONFLICT (key) DO UPDATE
           SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown
         WHERE NOT jobherd.holds_key(k.job, k.until, lives)
        RETURNING k.job
    ), counted AS MATERIALIZED (
        SELECT (SELECT count(*) FROM won) = (SELECT count(*) FROM ranked f WHERE f.id = f.first) AS all_won
    ), taken AS MATERIALIZED (
        -- Cost: the ids are compared one by one only if another transaction has taken one of the keys since. `IS TRUE`
        -- makes that a hash, whatever number of rows the planner expects.
        SELECT r.id, r.payload, r.key,
               CASE WHEN confined OR divided IS NOT NULL OR rule ? 'partition'
                    THEN jobherd.partition_of(rule ->> 'partition', divided, r.payload, enqueue_unique.tenant, confined) END AS partition
          FROM ranked r
         WHERE r.id = r.first
           AND ((SELECT c.all_won FROM counted c)
                OR (r.id IN (SELECT w.job FROM won w)) IS TRUE)
         ORDER BY r.id
    ), at_once AS (
        -- Cost: by attributes. A call of extras_of for each job costs as much as the rest of its row.
        INSERT INTO jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras.tenant,
                                   extras.webhook, extras.payload_bytes, extras.parent_id, extras.traceparent, extras.unique_key,
                                   extras.partition, lane)
        SELECT t.id, due, enqueue_unique.expires_at, enqueue_unique.timeout, enqueue_unique.priority, enqueue_unique.max_attempts,
               enqueue_unique.queue, enqueue_unique.kind, t.payload,
               enqueue_unique.tenant, enqueue_unique.webhook, enqueue_unique.payload_bytes, enqueue_unique.parent_id, enqueue_unique.traceparent,
               CASE WHEN lives <> 'never' THEN t.key END, t.partition, jobherd.lane_of(t.partition)
          FROM taken t
         WHERE due <= now()
    ), later AS (
        INSERT INTO jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras.tenant,
                                   extras.webhook, extras.payload_bytes, extras.parent_id, extras.traceparent, extras.unique_key,
                                   extras.partition, lane)
        SELECT t.id, due, enqueue_unique.expires_at, enqueue_unique.timeout, enqueue_unique.priority, enqueue_unique.max_attempts,
               enqueue_unique.queue, enqueue_unique.kind, t.payload,
               enqueue_unique.tenant, enqueue_unique.webhook, enqueue_unique.payload_bytes, enqueue_unique.parent_id, enqueue_unique.traceparent,
               CASE WHEN lives <> 'never' THEN t.key END, t.partition, jobherd.lane_of(t.partition)
          FROM taken t
         WHERE due > now()
    )
    SELECT r.place,
           CASE WHEN r.holder IS NOT NULL THEN r.holder
                WHEN (SELECT c.all_won FROM counted c)
                     OR (r.first IN (SELECT w.job FROM won w)) IS TRUE THEN r.first
                ELSE jobherd.holder_of(r.key) END,
           coalesce(r.id = r.first, false)
           AND ((SELECT c.all_won FROM counted c)
                OR (r.first IN (SELECT w.job FROM won w)) IS TRUE)
      FROM ranked r
     ORDER BY r.place;
END $$;

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
CREATE OR REPLACE FUNCTION jobherd.enqueue_keyed(
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
