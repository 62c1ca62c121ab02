-- Enqueue of unique jobs: jobherd.enqueue_unique. What the keys are is in 09_unique.sql.

-- Enqueues jobs of one kind, each unless a job holds its key. Returns for each payload the id of its job,
-- and whether the job is new. A tenant's role may write none of the keys, so it runs as the owner.
--
-- names, paths: the fields of the payload that count, such as {$.doc.id} and {"{doc,id}"}; null: the whole
-- payload counts. keys: a text for each job instead, from producers that encrypt.
-- rule: `key`, one text for all jobs instead of their payloads; `queue`, true if each queue has its own keys;
-- `during`: live, waiting or never; `for`: seconds for which a job counts in any case; `conflict`: ignore or
-- raise. With raise nothing is enqueued if one of the jobs is not new. `partition`: of all jobs.
--
-- A duplicate that is found by the first look writes and locks nothing. The other keys are taken in order,
-- so two calls cannot deadlock. A second caller waits for the first to commit or roll back, and decides then.
--
-- Cost: a key is the hash of a text, and the text of a JSON array is `head`, the text of its last member, and `]`.
-- So no array is built for each job. The column `payload` is json, of which a field is read without parsing the rest
-- into jsonb. Many keys that the look does not find are inserted without ON CONFLICT, which would take a lock and a
-- record in the log for each. If another transaction inserts one of them first, the call does everything again,
-- carefully. Rows are read in the order in which they were materialized: of the payloads.
CREATE FUNCTION jobherd.enqueue_unique(
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
SET enable_seqscan = off  -- a plan made while the tables were small would be kept
AS $$
#variable_conflict use_column
DECLARE
    lives  CONSTANT text := coalesce(rule ->> 'during', 'live');
    -- the last word: a field called `key` and the text of a key are not the same
    head   CONSTANT text := left(jsonb_build_array(
               kind, tenant, CASE WHEN (rule -> 'queue')::boolean THEN queue END,
               CASE WHEN keys IS NOT NULL THEN 'secret' WHEN rule ? 'key' THEN 'key'
                    WHEN names IS NOT NULL THEN 'by' ELSE 'payload' END)::text, -1) || ', ';
    word   CONSTANT text := rule ->> 'key';
    lasts  CONSTANT timestamptz := now() + make_interval(secs => (rule ->> 'for')::double precision);
    named  CONSTANT text := rule ->> 'partition';
    common jobherd.extras;
    part   text;
    field  text;
    path   text[];
    divided  text[];                                -- path to the partition, as the kind declares it
    splits   boolean;                               -- whether the jobs have partitions
    confined boolean := false;
    hidden boolean;
    hash   bytea;
    ends   timestamptz;
    moment timestamptz;
    due    timestamptz;
    ids    bigint[];
    news   boolean[];
    careful  boolean := false;
    violated text;
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
        part := CASE WHEN keys IS NULL AND word IS NOT NULL THEN jsonb_build_object('key', word)::text
                     WHEN keys IS NULL AND cardinality(names) = 1
                     THEN '{' || to_json(names[1])::text || ': '
                          || coalesce((payloads[1]::json #> paths[1]::text[])::jsonb::text, 'null') || '}'
                     ELSE jobherd.unique_part(payloads[1], keys[1], names, paths, payload_bytes)::text END;
        hash := sha256(convert_to(head || part || ']', 'UTF8'));
        SELECT k.job, k.until INTO id, ends FROM jobherd.keys k WHERE k.key = hash;
        IF id IS NOT NULL AND NOT jobherd.holds_key(id, ends, lives) THEN
            id := NULL;
        END IF;
        new := false;
        IF id IS NULL THEN
            SELECT k.partition_by, k.redact <> '[]' INTO divided, hidden FROM jobherd.kinds k WHERE k.name = enqueue_unique.kind;
            id := nextval('jobherd.job_ids');
            INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown, timed_job)
            VALUES (hash, enqueue_unique.id, lasts, lives, kind,
                    CASE WHEN keys IS NULL AND (word IS NOT NULL OR hidden IS NOT TRUE) THEN left(coalesce(word, part), 200) END,
                    CASE WHEN lives = 'never' THEN enqueue_unique.id END)
            ON CONFLICT (key) DO UPDATE
               SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown,
                   timed_job = excluded.timed_job
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
                IF confined OR divided IS NOT NULL OR named IS NOT NULL THEN
                    common.partition := jobherd.partition_of(named, divided, payloads[1]::json, tenant, confined);
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
    SELECT k.partition_by, k.redact <> '[]' INTO divided, hidden FROM jobherd.kinds k WHERE k.name = enqueue_unique.kind;
    hidden := keys IS NOT NULL OR (word IS NULL AND hidden IS TRUE);
    IF keys IS NULL AND word IS NOT NULL THEN
        part := jsonb_build_object('key', word)::text;
    ELSIF keys IS NULL AND cardinality(names) = 1 THEN
        field := '{' || to_json(names[1])::text || ': ';
        path := paths[1]::text[];
    END IF;
    moment := clock_timestamp();
    due := coalesce(run_at, now());
    webhook := jobherd.check_webhook(webhook);
    traceparent := jobherd.check_traceparent(traceparent);
    splits := confined OR divided IS NOT NULL OR named IS NOT NULL;
    LOOP
        BEGIN
            RETURN QUERY
            WITH hashed AS MATERIALIZED (
                SELECT p.place, p.payload, sha256(convert_to(head || p.part || ']', 'UTF8')) AS key,
                       CASE WHEN NOT hidden THEN left(coalesce(word, p.part), 200) END AS shown
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
            ), found AS MATERIALIZED (
                SELECT k.key, k.job,
                       (k.until > moment
                        OR lives <> 'never'
                       -- Cost: not EXISTS, for which the planner may read the whole table into a hash
                       AND ((SELECT lives = 'live' OR r.attempts = 0 FROM jobherd.ready r WHERE r.id = k.job)
                            OR (SELECT lives = 'live' OR w.attempts = 0 FROM jobherd.scheduled w WHERE w.id = k.job)
                            OR (SELECT lives = 'live' OR q.attempts = 0 FROM jobherd.parked q WHERE q.id = k.job)
                            OR lives = 'live' AND k.job IN (SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j)))
                       IS TRUE AS counts
                  FROM jobherd.keys k
                 WHERE k.key = ANY (array(SELECT h.key FROM hashed h))
            ), asked AS MATERIALIZED (
                SELECT h.place, h.payload, h.key, h.shown, f.job AS holder,
                       CASE WHEN f.job IS NULL THEN nextval('jobherd.job_ids') END AS id
                  FROM hashed h LEFT JOIN found f ON f.key = h.key AND f.counts
            ), added AS (
                -- the first of each key gets it
                INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown, timed_job)
                SELECT DISTINCT ON (a.key) a.key, a.id, lasts, lives, enqueue_unique.kind, a.shown, CASE WHEN lives = 'never' THEN a.id END
                  FROM asked a
                 WHERE a.id IS NOT NULL AND NOT careful AND NOT EXISTS (SELECT FROM found f WHERE NOT f.counts)
                 ORDER BY a.key, a.id
                RETURNING k.job
            ), won AS (
                INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown, timed_job)
                SELECT DISTINCT ON (a.key) a.key, a.id, lasts, lives, enqueue_unique.kind, a.shown, CASE WHEN lives = 'never' THEN a.id END
                  FROM asked a
                 WHERE a.id IS NOT NULL AND (careful OR EXISTS (SELECT FROM found f WHERE NOT f.counts))
                 ORDER BY a.key, a.id
                ON CONFLICT (key) DO UPDATE
                   SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown,
                       timed_job = excluded.timed_job
                 WHERE NOT jobherd.holds_key(k.job, k.until, lives)
                RETURNING k.job
            ), holders AS MATERIALIZED (
                SELECT d.job FROM added d UNION ALL SELECT w.job FROM won w
            ), counted AS MATERIALIZED (
                SELECT (SELECT count(*) FROM holders) = (SELECT count(a.id) FROM asked a) AS all_new
            ), taken AS NOT MATERIALIZED (
                -- Cost: the ids are compared one by one only if a key is there twice, or another transaction has taken one
                -- since. `IS TRUE` makes that a hash, whatever number of rows the planner expects.
                SELECT a.id, a.payload, a.key,
                       CASE WHEN splits THEN jobherd.partition_of(named, divided, a.payload, enqueue_unique.tenant, confined) END AS partition
                  FROM asked a
                 WHERE a.id IS NOT NULL AND ((SELECT c.all_new FROM counted c) OR (a.id IN (SELECT h.job FROM holders h)) IS TRUE)
                OFFSET 0
            ), at_once AS (
                -- Cost: by attributes. A call of extras_of for each job costs as much as the rest of its row.
                INSERT INTO jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                           extras.tenant, extras.webhook, extras.payload_bytes, extras.parent_id, extras.traceparent,
                                           extras.unique_key, extras.partition, lane)
                SELECT t.id, due, enqueue_unique.expires_at, enqueue_unique.timeout, enqueue_unique.priority,
                       enqueue_unique.max_attempts, enqueue_unique.queue, enqueue_unique.kind, t.payload,
                       enqueue_unique.tenant, enqueue_unique.webhook, enqueue_unique.payload_bytes, enqueue_unique.parent_id,
                       enqueue_unique.traceparent, CASE WHEN lives <> 'never' THEN t.key END, t.partition, jobherd.lane_of(t.partition)
                  FROM taken t
                 WHERE due <= now()
            ), later AS (
                INSERT INTO jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload,
                                               extras.tenant, extras.webhook, extras.payload_bytes, extras.parent_id, extras.traceparent,
                                               extras.unique_key, extras.partition, lane)
                SELECT t.id, due, enqueue_unique.expires_at, enqueue_unique.timeout, enqueue_unique.priority,
                       enqueue_unique.max_attempts, enqueue_unique.queue, enqueue_unique.kind, t.payload,
                       enqueue_unique.tenant, enqueue_unique.webhook, enqueue_unique.payload_bytes, enqueue_unique.parent_id,
                       enqueue_unique.traceparent, CASE WHEN lives <> 'never' THEN t.key END, t.partition, jobherd.lane_of(t.partition)
                  FROM taken t
                 WHERE due > now()
            )
            SELECT a.place, coalesce(a.holder, a.id), a.id IS NOT NULL
              FROM asked a
             WHERE (SELECT c.all_new FROM counted c)
             UNION ALL
            (SELECT r.place,
                    CASE WHEN r.holder IS NOT NULL THEN r.holder WHEN r.holds THEN r.first ELSE jobherd.holder_of(r.key) END,
                    r.holds AND r.id = r.first
               FROM (SELECT f.place, f.key, f.holder, f.id, f.first, (f.first IN (SELECT h.job FROM holders h)) IS TRUE AS holds
                       FROM (SELECT a.place, a.key, a.holder, a.id, first_value(a.id) OVER (PARTITION BY a.key ORDER BY a.id) AS first
                               FROM asked a
                              WHERE (SELECT NOT c.all_new FROM counted c)) AS f) AS r
              ORDER BY r.place);
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
            IF careful OR violated <> 'keys_pkey' THEN
                RAISE;
            END IF;
            careful := true;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION jobherd.enqueue_unique IS
    'Enqueues jobs of one kind, each unless a job holds its key. Returns for each payload the id of its job, and '
    'whether the job is new. Jobherd''s clients call it; jobherd.enqueue takes the same as options.';
