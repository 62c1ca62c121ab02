-- Unique jobs: at most one live job for each key.
--
-- A key names its holder, the job that was enqueued under it last. A key is never released: the holder
-- counts while it is live, which its place in `ready`, `parked`, `scheduled` or `running` says. So a
-- settlement costs nothing, and no crash leaves a key behind. Maintenance deletes the keys of dead jobs.
--
-- Race: whether a holder is live is read by a statement that begins after the key's row was locked. A
-- VOLATILE function takes a new snapshot for each of its statements; the statement that waited for the
-- lock would still see the time before. tests/models/unique.pml checks the protocol.

CREATE TABLE jobherd.keys (
    key       bytea       PRIMARY KEY,                  -- SHA-256 of kind, tenant, queue and what makes the job unique
    job       bigint      NOT NULL,                     -- the holder
    until     timestamptz,                              -- the holder counts until then, even when it has finished
    during    text COLLATE "C" NOT NULL,                -- as it was enqueued: live, waiting, never
    kind      text COLLATE "C" NOT NULL,
    shown     text,                                     -- for people; null: encrypted or redacted
    -- Cost: a column of its own, since an update that changes an indexed column needs new entries in all indexes. This
    -- one stays null for all other keys, so the next job of a key still updates the row in its page.
    timed_job bigint                                    -- the holder, if `during` is never
)
-- The next job of a key updates the row in its page, without a new index entry.
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.keys IS
    'Keys of unique jobs, each with the job that holds it. A key counts while its job is live, or until its period has passed.';
CREATE INDEX keys_by_timed_job ON jobherd.keys (timed_job) WHERE timed_job IS NOT NULL;

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

-- Returns the holder of a key that this transaction has locked. VOLATILE: the statement that waited for the
-- lock does not see the job that another transaction has committed since.
CREATE FUNCTION jobherd.holder_of(key bytea)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT k.job FROM jobherd.keys k WHERE k.key = holder_of.key);
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

-- Returns name and path of each field of a payload: `order_id`, or a path such as `$.doc.items[0]`.
CREATE FUNCTION jobherd.unique_fields(fields jsonb)
RETURNS TABLE (name text, path text)
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    FOR name IN SELECT f FROM jsonb_array_elements_text(fields) AS f LOOP
        IF name ~ '^[^.$\[\]]+$' THEN
            path := ARRAY[name]::text;
        ELSIF name ~ '^\$(\.[^.$\[\]]+|\[[0-9]{1,9}\])+$' THEN
            path := (SELECT array_agg(coalesce(m[1], m[2])) FROM regexp_matches(name, '\.([^.\[]+)|\[([0-9]+)\]', 'g') AS m)::text;
        ELSE
            RAISE EXCEPTION 'must name fields of the payload, like order_id or $.doc.id';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Returns the rule of enqueue_unique and enqueue_keyed for the options of a job. `delay`: seconds until a new
-- job is due.
CREATE FUNCTION jobherd.unique_rule(options jsonb)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    given    CONSTANT jsonb := CASE WHEN jsonb_typeof(options -> 'unique') = 'object' THEN options -> 'unique' ELSE '{}' END;
    fields   CONSTANT jsonb := CASE WHEN given <> '{}' THEN coalesce(given -> 'by', 'true')
                                    WHEN options ? 'unique' AND options -> 'unique' <> '{}' THEN options -> 'unique' ELSE 'true' END;
    named    CONSTANT jsonb := CASE jsonb_typeof(fields) WHEN 'array' THEN fields WHEN 'string' THEN jsonb_build_array(fields) END;
    during   CONSTANT text := coalesce(given ->> 'during', 'live');
    conflict CONSTANT text := coalesce(given ->> 'conflict', 'ignore');
    changes  CONSTANT boolean := conflict IN ('replace', 'collect');
    listed   CONSTANT text := given ->> 'collect';
    word     CONSTANT text := options ->> 'unique_key';
    edge     CONSTANT text := options ->> 'edge';
    delayed  CONSTANT boolean := coalesce(edge = 'trailing', false);
    pause    CONSTANT double precision := jobherd.seconds_of(options ->> 'debounce');
    patience CONSTANT double precision := jobherd.seconds_of(options ->> 'max_wait');
    lasts    CONSTANT double precision := jobherd.seconds_of(options ->> 'unique_for');
    throttle CONSTANT double precision := jobherd.seconds_of(options ->> 'throttle');
    keyed    CONSTANT boolean := pause IS NOT NULL OR delayed OR changes;
BEGIN
    IF given - '{by,queue,during,conflict,collect}'::text[] <> '{}' THEN
        RAISE EXCEPTION 'takes by, queue, during, conflict and collect';
    ELSIF named IS NULL AND fields NOT IN ('true', 'false') THEN
        RAISE EXCEPTION 'must be true, false, fields of the payload like ["order_id"], or an object like {"by": ["order_id"]}';
    ELSIF jsonb_array_length(named) NOT BETWEEN 1 AND 20 THEN
        RAISE EXCEPTION 'must name 1 to 20 fields of the payload';
    ELSIF fields = 'false' THEN
        RETURN NULL;
    ELSIF during <> ALL ('{live,waiting,never}') THEN
        RAISE EXCEPTION 'during must be live, waiting or never';
    ELSIF conflict <> ALL ('{ignore,raise,replace,collect}') THEN
        RAISE EXCEPTION 'conflict must be ignore, raise, replace or collect';
    ELSIF edge <> ALL ('{leading,trailing}') THEN
        RAISE EXCEPTION 'edge must be leading or trailing';
    ELSIF jsonb_typeof(given -> 'queue') <> 'boolean' THEN
        RAISE EXCEPTION 'queue must be true or false: whether each queue has its own keys';
    ELSIF (conflict = 'collect') <> (listed IS NOT NULL) THEN
        RAISE EXCEPTION 'the conflict collect and "collect", the name of the list, belong together';
    ELSIF listed !~ '^[^.$\[\]]+$' OR named ? listed THEN
        RAISE EXCEPTION 'collect must name a field of the payload that is not in by';
    ELSIF conflict = 'collect' AND named IS NULL AND word IS NULL THEN
        RAISE EXCEPTION 'the conflict collect requires by or unique_key, without the list';
    ELSIF length(word) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'unique_key must have 1 to 1,000 characters';
    ELSIF least(pause, patience, lasts, throttle) <= 0 THEN
        RAISE EXCEPTION 'durations must be more than 0 seconds';
    ELSIF changes AND during = 'never' THEN
        RAISE EXCEPTION 'the conflict % changes a job that waits, so it excludes during never', conflict;
    ELSIF during = 'never' AND lasts IS NULL AND throttle IS NULL THEN
        RAISE EXCEPTION 'during never requires unique_for, the time for which a job holds its key';
    ELSIF throttle IS NOT NULL AND (pause IS NOT NULL OR lasts IS NOT NULL) THEN
        RAISE EXCEPTION 'throttle excludes debounce and unique_for';
    ELSIF edge IS NOT NULL AND throttle IS NULL THEN
        RAISE EXCEPTION 'edge requires throttle';
    ELSIF throttle IS NOT NULL AND NOT delayed AND changes THEN
        RAISE EXCEPTION 'throttle with the conflict % requires edge trailing', conflict;
    ELSIF patience IS NOT NULL AND (pause IS NULL OR patience < pause) THEN
        RAISE EXCEPTION 'max_wait requires debounce, and must not be shorter';
    ELSIF keyed AND conflict = 'raise' THEN
        RAISE EXCEPTION 'debounce and edge trailing exclude the conflict raise';
    ELSIF (pause IS NOT NULL OR delayed) AND options ?| '{delay,run_at}' THEN
        RAISE EXCEPTION '% excludes delay and run_at', CASE WHEN delayed THEN 'edge trailing' ELSE 'debounce' END;
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'by', CASE WHEN word IS NULL THEN named END, 'key', word, 'queue', given -> 'queue',
        'during', CASE WHEN keyed THEN 'waiting' WHEN throttle IS NOT NULL THEN 'never' ELSE during END,
        'for', CASE WHEN keyed THEN lasts ELSE coalesce(throttle, lasts) END,
        'debounce', pause, 'max_wait', coalesce(patience, 10 * pause), 'keep', delayed,
        'delay', coalesce(pause, CASE WHEN delayed THEN throttle END),
        'conflict', CASE WHEN listed IS NOT NULL THEN 'collect' WHEN keyed THEN 'replace' ELSE conflict END,
        'collect', listed));
END $$;

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
