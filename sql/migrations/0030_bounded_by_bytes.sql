-- No claim is larger than the server and a worker can take. A batch is one row of running, and no row of PostgreSQL's holds more than 1 GB: two
-- hundred payloads of 10 MB were a claim that was refused, by every worker that tried, and nothing of that queue ran any more.
--
-- What a producer of ours may hand over has a limit (JOBHERD_MAX_PAYLOAD); a row that was put in by hand had none.
-- pg_column_size looks at a value's head and reads nothing: of what is stored outside of the row it says what it takes there. NOT VALID: what is there
-- already is not looked at, and nobody waits for all of it to be read. Nor is what has run: it comes back with its error's text, and must.
ALTER TABLE jobherd.ready ADD CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb
    CHECK (attempts > 0 OR crashes > 0
           OR pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) <= 67108864) NOT VALID;
ALTER TABLE jobherd.scheduled ADD CONSTRAINT scheduled_payload_extras_and_last_error_are_at_most_64_mb
    CHECK (attempts > 0 OR crashes > 0
           OR pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) <= 67108864) NOT VALID;

-- As in 0024_parked_first.sql, but that bytes weigh, as in claim_jobs.sql.
CREATE OR REPLACE FUNCTION jobherd.claim_gated(supervisor bigint, child bigint, served text[], avoided text[], wanted integer, kinds text[],
                                    shares real[], limited text[], limits integer[], left_queue text, left_kind text, among bigint[],
                                    OUT token bigint, OUT queue text, OUT jobs jobherd.ready[], OUT more boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    me          CONSTANT bigint := supervisor;
    shut_queues text[];                             -- paused or full, or not to be looked at again in this call
    shut_kinds  text[];
    gated       text[];                             -- kinds with a gate of any sort
    capped      text[];                             -- queues with a cap
    next        record;
    job         jobherd.ready;
    batch       jobherd.ready[];
    taken       bigint[] := '{}';
    aside       bigint[];
    weight      real;
    share       real;
    single       text;                               -- the kind of what is claimed alone
    own         integer;                            -- this supervisor's limit for the queue
    held        integer := 0;
    had         boolean;
    elsewhere   text;                               -- a queue whose rows are all in other hands
BEGIN
    PERFORM FROM jobherd.supervisors s WHERE s.id = me AND s.lease_until > clock_timestamp();
    IF NOT FOUND THEN RETURN; END IF;  -- the fence against a frozen host
    IF limited IS NULL AND NOT coalesce(array_to_string(served, ',') LIKE '%*%', false)
       AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope <> 'queue' OR g.max_running IS NOT NULL) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- What looks shut, at a glance and all at once, for there may be a cap for each of many queues. What looks open is looked at again under
    -- its lock, where the jobs that were claimed before the cap are counted too.
    SELECT coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind'), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.max_running IS NOT NULL), '{}')
      INTO shut_queues, shut_kinds, gated, capped
      FROM (SELECT g.scope, g.name, g.max_running, g.paused_at IS NOT NULL OR coalesce(u.jobs >= g.max_running, false) AS shut
              FROM jobherd.gates g LEFT JOIN (
                   SELECT 'queue' AS scope, r.queue AS name, count(*) AS jobs FROM jobherd.running r WHERE r.kind IS NOT NULL GROUP BY r.queue
                    UNION ALL
                   SELECT 'kind', r.kind, count(*) FROM jobherd.running r WHERE r.kind IS NOT NULL GROUP BY r.kind
                   ) AS u ON u.scope = g.scope AND u.name = g.name) AS g;
    shut_queues := shut_queues || coalesce(avoided, '{}');
    IF EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'all' AND g.paused_at IS NOT NULL) THEN
        RETURN;
    END IF;
    FOR turn IN 1..20 LOOP
        elsewhere := CASE WHEN turn = 20 THEN '*' ELSE elsewhere END;  -- not all was looked at: ask again
        -- The first job of what looks open, in the order of the served queues, priority and id: at the head of a queue, or parked.
        WITH RECURSIVE head AS (
            (SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r ORDER BY r.queue, r.priority, r.id LIMIT 1)
            UNION ALL
            SELECT after.queue, after.priority, after.id
              FROM head h CROSS JOIN LATERAL (
                   SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
                   ) AS after
        ), aside AS (
            (SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1)
            UNION ALL
            SELECT after.kind, after.queue, after.priority, after.id
              FROM aside a CROSS JOIN LATERAL (
                   SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p WHERE (p.kind, p.queue) > (a.kind, a.queue)
                    ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1
                   ) AS after
        )
        SELECT c.queue, c.kind, c.priority, c.id INTO next
          FROM (SELECT h.queue, NULL::text AS kind, h.priority, h.id FROM head h WHERE among IS NULL
                UNION ALL
                SELECT a.queue, a.kind, a.priority, a.id FROM aside a WHERE among IS NULL AND a.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT r.queue, NULL, r.priority, r.id FROM ONLY jobherd.ready r WHERE r.id = ANY (among) AND r.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT p.queue, p.kind, p.priority, p.id FROM jobherd.parked p WHERE p.id = ANY (among) AND p.kind <> ALL (shut_kinds)) AS c
         WHERE c.queue <> ALL (shut_queues) AND jobherd.rank_queue(c.queue, served) IS NOT NULL
         ORDER BY jobherd.rank_queue(c.queue, served), c.priority, c.id
         LIMIT 1;
        EXIT WHEN NOT FOUND;

        own := limits[jobherd.rank_queue(next.queue, limited)];
        IF own IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(1, me || ' ' || next.queue, held);
            had := had AND (SELECT count(*) FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child
                             WHERE r.queue = next.queue AND r.kind IS NOT NULL AND c.supervisor = me) < own;
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;
        IF next.queue = ANY (capped) THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(2, next.queue, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = next.queue
                                          AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running));
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;

        IF next.kind IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(3, next.kind, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = next.kind
                                          AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running));
            IF NOT had THEN
                shut_kinds := shut_kinds || next.kind;
                CONTINUE;
            END IF;
            DELETE FROM jobherd.parked p
             WHERE p.id = (SELECT o.id FROM jobherd.parked o WHERE o.kind = next.kind AND o.queue = next.queue AND (among IS NULL OR o.id = ANY (among))
                            ORDER BY o.kind, o.queue, o.priority, o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING * INTO job;
            IF NOT FOUND THEN
                shut_kinds := shut_kinds || next.kind;  -- being cancelled
                CONTINUE;
            END IF;
            job.attempts := job.attempts + 1;
            batch := ARRAY[job];
            single := job.kind;
            EXIT;
        END IF;

        aside := '{}';
        weight := 0;
        FOR job IN SELECT r.* FROM ONLY jobherd.ready r WHERE r.queue = next.queue AND (r.priority, r.id) >= (next.priority, next.id)
                      AND (among IS NULL OR r.id = ANY (among))
                    ORDER BY r.priority, r.id LIMIT greatest(wanted, 100) FOR UPDATE SKIP LOCKED LOOP
            had := true;
            -- What is parked may come before it: choose anew. Before its cap is locked, for who finds a lock taken relies on its holder.
            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);
            IF job.kind = ANY (gated) THEN
                IF cardinality(taken) > 0 THEN EXIT; END IF;
                IF job.kind <> ALL (shut_kinds) THEN
                    SELECT * INTO held, had FROM jobherd.lock_cap(3, job.kind, held);
                    IF NOT had OR EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = job.kind
                                             AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running)) THEN
                        shut_kinds := shut_kinds || job.kind;
                    END IF;
                END IF;
                IF job.kind = ANY (shut_kinds) THEN
                    aside := aside || job.id;
                    CONTINUE;
                END IF;
                single := job.kind;
            ELSIF own IS NOT NULL OR next.queue = ANY (capped) THEN
                single := job.kind;
            ELSE
                share := CASE WHEN job.alone THEN 2 WHEN kinds IS NULL THEN 0
                              ELSE coalesce(shares[array_position(kinds, job.kind)], 1) END
                         + (pg_column_size(job.payload) + coalesce(pg_column_size(job.extras), 0))::real / 1000000::real;
                EXIT WHEN cardinality(taken) > 0 AND (weight >= 1 OR share >= 1 OR cardinality(taken) >= wanted);
                weight := weight + share;
            END IF;
            taken := taken || job.id;
            job.attempts := job.attempts + 1;
            batch := batch || job;
            EXIT WHEN single IS NOT NULL;
        END LOOP;
        IF cardinality(aside) > 0 THEN
            WITH gone AS (DELETE FROM ONLY jobherd.ready r WHERE r.id = ANY (aside) RETURNING *) INSERT INTO jobherd.parked SELECT * FROM gone;
        END IF;
        IF cardinality(taken) > 0 THEN
            DELETE FROM ONLY jobherd.ready r WHERE r.id = ANY (taken);
            EXIT;
        ELSIF cardinality(aside) = 0 THEN
            shut_queues := shut_queues || next.queue;  -- all of it is locked
            elsewhere := next.queue;
        END IF;
    END LOOP;

    IF batch IS NOT NULL THEN
        INSERT INTO jobherd.running (child, token, queue, kind, jobs)
        VALUES (claim_gated.child, nextval('jobherd.tokens'), next.queue, single, batch)
        RETURNING running.token, running.queue, running.jobs INTO token, queue, jobs;
        more := EXISTS (SELECT FROM ONLY jobherd.ready r WHERE r.queue = next.queue)
                OR EXISTS (SELECT FROM jobherd.parked p WHERE p.kind = single);
        -- Who found the lock taken, or no slot, may sleep by now: if there is more to take, somebody must be told.
        IF more AND single IS NOT NULL
           AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE ((g.scope = 'queue' AND g.name = next.queue) OR (g.scope = 'kind' AND g.name = single))
                              AND jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running) THEN
            PERFORM jobherd.tell_sleepers(CASE WHEN single = ANY (gated) THEN '*' ELSE next.queue END);
        END IF;
    ELSE
        queue := elsewhere;
    END IF;
    IF (queue IS DISTINCT FROM left_queue AND (left_queue = ANY (capped) OR jobherd.rank_queue(left_queue, coalesce(limited, '{}')) IS NOT NULL))
       OR (single IS DISTINCT FROM left_kind AND left_kind = ANY (gated)) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN left_kind = ANY (gated) THEN '*' ELSE left_queue END);
    END IF;
    IF token IS NOT NULL OR queue IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END $$;
