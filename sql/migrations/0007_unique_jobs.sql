-- Unique jobs: at most one live job for each key.
--
-- A key names its holder, the job that was enqueued under it last. A key is never released: the holder
-- counts while it is live, which its place in `ready`, `parked`, `scheduled` or `running` says. So a
-- settlement costs nothing, and no crash leaves a key behind. Maintenance deletes the keys of dead jobs.
--
-- Race: whether a holder is live is read by a statement that begins after the key's row was locked. A
-- VOLATILE function takes a new snapshot for each of its statements; the statement that waited for the
-- lock would still see the time before.

CREATE TABLE jobherd.keys (
    key    bytea       PRIMARY KEY,                     -- SHA-256 of kind, tenant, queue and what makes the job unique
    job    bigint      NOT NULL,                        -- the holder
    until  timestamptz,                                 -- the holder counts until then, even when it has finished
    during text COLLATE "C" NOT NULL,                   -- as it was enqueued: live, waiting, never
    kind   text COLLATE "C" NOT NULL,
    shown  text                                         -- for people; null: encrypted or redacted
)
-- The next job of a key updates the row in its page, without a new index entry.
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.keys IS
    'Keys of unique jobs, each with the job that holds it. A key counts while its job is live, or until its period has passed.';

-- What a retry by hand must take again before it makes a finished job ready.
ALTER TYPE jobherd.extras ADD ATTRIBUTE unique_key bytea;

DROP FUNCTION jobherd.extras_of(text, text, bytea, bigint, text);

-- Returns whether a holder counts now. `waiting`: a job that has not begun an attempt; one that waits for its
-- retry has. Everything is read in one snapshot, or a job that moves between two tables would be in neither.
CREATE FUNCTION jobherd.holds_key(job bigint, until timestamptz, during text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN coalesce(until > clock_timestamp(), false)
        OR CASE during
           WHEN 'live' THEN EXISTS (SELECT FROM jobherd.ready r WHERE r.id = job)
                         OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = job)
                         OR EXISTS (SELECT FROM jobherd.parked p WHERE p.id = job)
                         OR EXISTS (SELECT FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j WHERE j.id = job)
           WHEN 'waiting' THEN EXISTS (SELECT FROM jobherd.ready r WHERE r.id = job AND r.attempts = 0)
                            OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = job AND s.attempts = 0)
                            OR EXISTS (SELECT FROM jobherd.parked p WHERE p.id = job AND p.attempts = 0)
           ELSE false END;
END $$;

-- Gives a key to a job that is retried by hand, unless another job holds it. Returns the holder. The
-- period of the key is not read: a retry is not an enqueue.
CREATE FUNCTION jobherd.take_key(key bytea, job bigint, kind text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    wanted CONSTANT bytea := key;
    taker  CONSTANT bigint := job;
    named  CONSTANT text := kind;
    holder bigint;
BEGIN
    INSERT INTO jobherd.keys AS k (key, job, during, kind) VALUES (wanted, taker, 'live', named)
    ON CONFLICT (key) DO UPDATE SET job = excluded.job WHERE NOT jobherd.holds_key(k.job, NULL, k.during)
    RETURNING k.job INTO holder;
    IF holder IS NULL THEN
        SELECT k.job INTO holder FROM jobherd.keys k WHERE k.key = wanted;
    END IF;
    RETURN holder;
END $$;

-- Returns what makes a job unique, as a JSON value whose text is the same for equal values. word: the text
-- of its key. names, paths: fields of its payload. Without them the whole payload counts, and its bytes.
CREATE FUNCTION jobherd.unique_part(payload text, word text, names text[], paths text[], bytes bytea)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    document jsonb;
    part     jsonb := '{}';
BEGIN
    IF word IS NOT NULL THEN
        RETURN jsonb_build_object('key', word);
    END IF;
    document := payload::jsonb;
    IF names IS NULL THEN
        part := jsonb_build_object('payload', document);
        RETURN CASE WHEN bytes IS NULL THEN part ELSE part || jsonb_build_object('bytes', encode(sha256(bytes), 'hex')) END;
    END IF;
    FOR n IN 1 .. cardinality(names) LOOP
        part := part || jsonb_build_object(names[n], document #> paths[n]::text[]);
    END LOOP;
    RETURN part;
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
-- A duplicate that is found by the first statement writes and locks nothing. The other keys are taken in order,
-- so two calls cannot deadlock. A second caller waits for the first to commit or roll back, and decides then.
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
AS $$
#variable_conflict use_variable
DECLARE
    jobs     CONSTANT integer := cardinality(payloads);
    what     CONSTANT text := kind;
    due      CONSTANT timestamptz := coalesce(run_at, now());
    expiry   CONSTANT timestamptz := expires_at;
    longest  CONSTANT double precision := timeout;
    rank     CONSTANT smallint := priority;
    most     CONSTANT smallint := max_attempts;
    line     CONSTANT text := queue;
    lives    CONSTANT text := coalesce(rule ->> 'during', 'live');
    lasts    CONSTANT timestamptz := now() + make_interval(secs => (rule ->> 'for')::double precision);
    raises   CONSTANT boolean := coalesce(rule ->> 'conflict' = 'raise', false);
    one_key  CONSTANT text := rule ->> 'key';
    bytes    CONSTANT bytea := payload_bytes;
    -- the last word: a field called `key` and the text of a key are not the same
    scope    CONSTANT jsonb := jsonb_build_array(kind, tenant, CASE WHEN (rule -> 'queue')::boolean THEN queue END,
                                                 CASE WHEN keys IS NOT NULL THEN 'secret' WHEN rule ? 'key' THEN 'key'
                                                      WHEN names IS NOT NULL THEN 'by' ELSE 'payload' END);
    common   jobherd.extras;
    hidden   boolean;
    part     jsonb;
    hash     bytea;
    hashes   bytea[];
    labels   text[];
    holders  bigint[];
    taken    bytea[];
    places   integer[];
    numbers  bigint[];
    wanted   integer;
BEGIN
    PERFORM jobherd.check_producer(kind, tenant);
    IF lives <> ALL ('{live,waiting,never}') OR jobs IS NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue_unique: during is live, waiting or never, not %', quote_literal(left(lives, 40))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jobs = 1 THEN
        part := jobherd.unique_part(payloads[1], coalesce(keys[1], one_key), names, paths, bytes);
        hash := sha256(convert_to((scope || part)::text, 'UTF8'));
        place := 1;
        new := false;
        SELECT k.job INTO id FROM jobherd.keys k
         WHERE k.key = hash
           AND (k.until > clock_timestamp()
                OR lives <> 'never'
               AND ((SELECT lives = 'live' OR r.attempts = 0 FROM jobherd.ready r WHERE r.id = k.job)
                    OR (SELECT lives = 'live' OR s.attempts = 0 FROM jobherd.scheduled s WHERE s.id = k.job)
                    OR (SELECT lives = 'live' OR p.attempts = 0 FROM jobherd.parked p WHERE p.id = k.job)
                    OR lives = 'live' AND k.job IN (SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j)));
        IF id IS NULL THEN
            INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown)
            VALUES (hash, nextval('jobherd.job_ids'), lasts, lives, what,
                    CASE WHEN one_key IS NOT NULL THEN left(one_key, 200)
                         WHEN keys IS NULL AND NOT EXISTS (SELECT FROM jobherd.kinds d WHERE d.name = what AND d.redact <> '[]')
                         THEN left(part::text, 200) END)
            ON CONFLICT (key) DO UPDATE
               SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown
             WHERE NOT jobherd.holds_key(k.job, k.until, lives)
            RETURNING k.job INTO id;
            new := id IS NOT NULL;
            IF NOT new THEN  -- another transaction has committed a job since; the row is locked now
                SELECT k.job INTO id FROM jobherd.keys k WHERE k.key = hash;
            END IF;
        END IF;
        IF new THEN
            common := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), bytes, parent_id,
                                        jobherd.check_traceparent(traceparent), CASE WHEN lives <> 'never' THEN hash END);
            IF due > now() THEN
                INSERT INTO jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras)
                VALUES (id, due, expiry, longest, rank, most, line, what, payloads[1]::json, common);
            ELSE
                INSERT INTO jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras)
                VALUES (id, due, expiry, longest, rank, most, line, what, payloads[1]::json, common);
            END IF;
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    hidden := keys IS NOT NULL
              OR (one_key IS NULL AND EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = what AND k.redact <> '[]'));
    SELECT array_agg(b.key ORDER BY b.place), array_agg(b.shown ORDER BY b.place), array_agg(h.job ORDER BY b.place)
      INTO hashes, labels, holders
      FROM (SELECT p.place, sha256(convert_to((scope || p.part)::text, 'UTF8')) AS key,
                   CASE WHEN NOT hidden THEN left(coalesce(one_key, p.part::text), 200) END AS shown
              FROM (SELECT a.place,
                           -- Cost: of 10,000 jobs, the call of a function for each would be a fifth of everything
                           CASE WHEN cardinality(names) = 1 AND a.key IS NULL AND one_key IS NULL
                                THEN jsonb_build_object(names[1], a.payload::jsonb #> paths[1]::text[])
                                ELSE jobherd.unique_part(a.payload, coalesce(a.key, one_key), names, paths, bytes) END AS part
                      -- the planner expects 1,000 rows of generate_series, and joins by hash
                      FROM ROWS FROM (unnest(payloads), unnest(keys), generate_series(1, jobs)) AS a (payload, key, place)
                    OFFSET 0) AS p
            OFFSET 0
           ) AS b
      LEFT JOIN LATERAL (
           SELECT k.job FROM jobherd.keys k
            WHERE k.key = b.key
              AND (k.until > clock_timestamp()
                   OR lives <> 'never'
                  -- Cost: not EXISTS, for which the planner may read the whole table into a hash
                  AND ((SELECT lives = 'live' OR r.attempts = 0 FROM jobherd.ready r WHERE r.id = k.job)
                       OR (SELECT lives = 'live' OR s.attempts = 0 FROM jobherd.scheduled s WHERE s.id = k.job)
                       OR (SELECT lives = 'live' OR p.attempts = 0 FROM jobherd.parked p WHERE p.id = k.job)
                       OR lives = 'live' AND k.job IN (SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j)))
            LIMIT 1) AS h ON true;
    IF raises AND (array_remove(holders, NULL) <> '{}' OR (SELECT count(DISTINCT u.key) FROM unnest(hashes) AS u (key)) < jobs) THEN
        RETURN QUERY SELECT a.place::integer, a.job, false FROM unnest(holders) WITH ORDINALITY AS a (job, place)
                      ORDER BY a.job IS NULL, a.place;
        RETURN;
    END IF;
    IF array_position(holders, NULL) IS NOT NULL THEN
        WITH free AS MATERIALIZED (
            SELECT DISTINCT ON (a.key) a.key, a.shown, a.place
              FROM ROWS FROM (unnest(hashes), unnest(labels), unnest(holders), generate_series(1, jobs)) AS a (key, shown, job, place)
             WHERE a.job IS NULL
             ORDER BY a.key, a.place
        ), numbered AS MATERIALIZED (
            SELECT f.key, f.shown, f.place, nextval('jobherd.job_ids') AS id FROM (SELECT * FROM free ORDER BY place) AS f
        ), won AS (
            INSERT INTO jobherd.keys AS k (key, job, until, during, kind, shown)
            SELECT n.key, n.id, lasts, lives, what, n.shown FROM numbered n ORDER BY n.key
            ON CONFLICT (key) DO UPDATE
               SET job = excluded.job, until = excluded.until, during = excluded.during, shown = excluded.shown
             WHERE NOT jobherd.holds_key(k.job, k.until, lives)
            RETURNING k.key
        )
        SELECT array_agg(n.key ORDER BY n.place), array_agg(n.place ORDER BY n.place), array_agg(n.id ORDER BY n.place),
               (SELECT count(*) FROM numbered)
          INTO taken, places, numbers, wanted
          FROM numbered n JOIN won w ON w.key = n.key;
        IF cardinality(taken) IS DISTINCT FROM wanted THEN
            -- Another transaction has committed a job under such a key since; its row is locked now, so the holder stays.
            SELECT array_agg(coalesce(a.job, k.job) ORDER BY a.place) INTO holders
              FROM ROWS FROM (unnest(hashes), unnest(holders), generate_series(1, jobs)) AS a (key, job, place)
              LEFT JOIN jobherd.keys k ON k.key = a.key AND a.job IS NULL AND k.key <> ALL (coalesce(taken, '{}'));
            IF raises THEN
                -- The taken keys name jobs that will never exist, which do not count.
                UPDATE jobherd.keys k SET until = NULL WHERE k.key = ANY (taken);
                RETURN QUERY SELECT a.place::integer, a.job, false FROM unnest(holders) WITH ORDINALITY AS a (job, place)
                              ORDER BY a.job IS NULL, a.place;
                RETURN;
            END IF;
        END IF;
        common := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), payload_bytes, parent_id,
                                    jobherd.check_traceparent(traceparent));
        IF due > now() THEN
            INSERT INTO jobherd.scheduled (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras)
            SELECT t.id, due, expiry, longest, rank, most, line, what, a.payload::json,
                   jobherd.extras_of(common.tenant, common.webhook, common.payload_bytes, common.parent_id,
                                     common.traceparent, CASE WHEN lives <> 'never' THEN t.key END)
              FROM ROWS FROM (unnest(payloads), generate_series(1, jobs)) AS a (payload, place)
              JOIN ROWS FROM (unnest(numbers), unnest(places), unnest(taken), generate_series(1, cardinality(taken)))
                   AS t (id, place, key, n) ON t.place = a.place
             ORDER BY t.id;
        ELSE
            INSERT INTO jobherd.ready (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras)
            SELECT t.id, due, expiry, longest, rank, most, line, what, a.payload::json,
                   jobherd.extras_of(common.tenant, common.webhook, common.payload_bytes, common.parent_id,
                                     common.traceparent, CASE WHEN lives <> 'never' THEN t.key END)
              FROM ROWS FROM (unnest(payloads), generate_series(1, jobs)) AS a (payload, place)
              JOIN ROWS FROM (unnest(numbers), unnest(places), unnest(taken), generate_series(1, cardinality(taken)))
                   AS t (id, place, key, n) ON t.place = a.place
             ORDER BY t.id;
        END IF;
    END IF;
    RETURN QUERY
    SELECT a.place, coalesce(a.job, t.id), coalesce(t.place = a.place, false)
      FROM ROWS FROM (unnest(hashes), unnest(holders), generate_series(1, jobs)) AS a (key, job, place)
      LEFT JOIN ROWS FROM (unnest(taken), unnest(numbers), unnest(places), generate_series(1, cardinality(taken)))
           AS t (key, id, place, n) ON t.key = a.key
     ORDER BY a.place;
END $$;
COMMENT ON FUNCTION jobherd.enqueue_unique IS
    'Enqueues jobs of one kind, each unless a job holds its key. Returns for each payload the id of its job, and '
    'whether the job is new. Jobherd''s clients call it; jobherd.enqueue takes the same as options.';

-- Deletes the keys that do not count any more, of the next `most` after `after`. Race: whether their jobs are
-- live is read by a second statement, since an enqueue may have given a key to a new job before it was locked.
-- A key that an enqueue has locked is left for the next round.
CREATE FUNCTION jobherd.sweep_keys(after bytea, most integer, OUT last bytea, OUT deleted bigint)
LANGUAGE plpgsql
SET jit = off
AS $$
DECLARE
    found bytea[];
BEGIN
    found := array(SELECT k.key FROM jobherd.keys k WHERE k.key > coalesce(after, '') ORDER BY k.key LIMIT most);
    last := found[cardinality(found)];
    found := array(SELECT k.key FROM jobherd.keys k WHERE k.key = ANY (found) AND (k.until > clock_timestamp()) IS NOT TRUE
                      FOR UPDATE SKIP LOCKED);
    WITH running AS MATERIALIZED (
        SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
    ), gone AS (
        DELETE FROM jobherd.keys k
         WHERE k.key = ANY (found)
           AND (SELECT true FROM jobherd.ready r WHERE r.id = k.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.scheduled s WHERE s.id = k.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.parked p WHERE p.id = k.job) IS NOT TRUE
           AND k.job NOT IN (SELECT r.id FROM running r)
        RETURNING true
    )
    SELECT count(*) INTO deleted FROM gone;
END $$;

COMMENT ON FUNCTION jobherd.retry_as(bigint, text, text) IS
    'Runs a job again: at once if it waits for its time, from the start if it has finished. It keeps its '
    'id, its history and its timeout; its counts begin again. Returns ''ready'', ''running'' (nothing to '
    'do), ''conflict'' (another live job holds its key), or null if there is no such job.';
