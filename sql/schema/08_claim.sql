-- Claims under pauses and concurrency limits. A claim without any of them is a plain statement
-- (claim/claim_jobs, claim/claim_job) and uses none of this.

-- Locks of the claims under a limit or a budget. Rows, not advisory locks: any login can take an
-- advisory lock and stop all claims under a limit, and hashed keys can collide. Not the rows of
-- `gates`: pause(), resume() and set_limit() lock those, and a worker must not wait for a caller whose
-- transaction stays open.
CREATE TABLE jobherd.claim_locks (
    scope text COLLATE "C" NOT NULL,                    -- budget, supervisor, queue or kind
    name  text COLLATE "C" NOT NULL,                    -- budget: the supervisor; supervisor: that and the queue
    PRIMARY KEY (scope, name)
);
COMMENT ON TABLE jobherd.claim_locks IS 'Rows that a claim locks to claim one after another.';

-- Locks until the end of the transaction. In the order of rank (budget, a supervisor's own limit,
-- queue, kind) a claim may wait: it holds only locks of lower ranks, so no two claims wait for each
-- other. Out of that order it only tries. The first claim creates the row. Race: two claims that each
-- create one row and then want the other's are a deadlock, once in the life of these rows. PostgreSQL
-- cancels one of the statements, and its worker repeats it.
CREATE FUNCTION jobherd.lock_limit(rank integer, name text, INOUT held integer, OUT had boolean)
RETURNS record
LANGUAGE plpgsql
AS $$
DECLARE
    wanted CONSTANT text := ('{budget,supervisor,queue,kind}'::text[])[rank + 1];
BEGIN
    LOOP
        IF held < rank THEN
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name
                FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        had := FOUND;
        EXIT WHEN had OR (held >= rank AND EXISTS (
            SELECT FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name));
        INSERT INTO jobherd.claim_locks (scope, name) VALUES (wanted, lock_limit.name) ON CONFLICT DO NOTHING;
    END LOOP;
    IF had THEN held := greatest(held, rank); END IF;
END $$;

-- Trigger, after a row of a limited job has left `running`: a slot is free. The worker that settles a
-- job claims next and sees it. All other processes that delete the row notify idle workers.
CREATE FUNCTION jobherd.wake_held()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = OLD.child AND c.backend_pid = pg_backend_pid()) THEN
        PERFORM jobherd.tell_sleepers(
            CASE WHEN EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = OLD.limited_kind) THEN '*'
                 ELSE OLD.queue END);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER DELETE ON jobherd.running FOR EACH ROW
    WHEN (OLD.limited_kind IS NOT NULL) EXECUTE FUNCTION jobherd.wake_held();

-- Claims with regard to pauses, limits, prefixes among the queues and a supervisor's own limits.
-- Run by claim/claim_gated: a worker uses it if claim_jobs has sent it there or its settings
-- require it.
--
-- limited, limits: queues or prefixes of which this supervisor runs at most that many jobs at a time.
-- left_queue, left_kind: of the job that this worker has just settled. If it was limited, its slot
-- may be left to other workers, and they are notified. among: the jobs that may be claimed; null: all.
--
-- Returns one row with what was claimed; or one with only a queue, whose waiting jobs are all locked
-- by other sessions; or one of nulls, if there is no pause or limit and claim_jobs is better; or
-- none. Jobs of a full or paused kind at the head of a queue are moved to `parked`, and the search
-- starts again: a job that was parked earlier may come first. Payload bytes count, as in
-- claim_jobs: no claim is larger than PostgreSQL and a worker can handle.
CREATE FUNCTION jobherd.claim_gated(
    supervisor bigint, child bigint, served text[], avoided text[], wanted integer, kinds text[], shares real[],
    limited text[], limits integer[], left_queue text, left_kind text, among bigint[], OUT token bigint,
    OUT queue text, OUT jobs jobherd.ready[], OUT more boolean
)
RETURNS SETOF record
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    me          CONSTANT bigint := supervisor;
    shut_queues text[];                             -- paused or full, or not to be tried again in this call
    shut_kinds  text[];
    gated       text[];                             -- kinds with a pause or limit
    limited_queues text[];                          -- queues with a limit
    next        record;
    job         jobherd.ready;
    batch       jobherd.ready[];
    taken       bigint[] := '{}';
    aside       bigint[];
    weight      real;
    share       real;
    single      text;                               -- the kind of a job that is claimed alone
    own         integer;                            -- this supervisor's limit for the queue
    held        integer := 0;
    had         boolean;
    elsewhere   text;                               -- a queue whose rows are all locked by other sessions
BEGIN
    PERFORM FROM jobherd.supervisors s WHERE s.id = me AND s.lease_until > clock_timestamp();
    IF NOT FOUND THEN RETURN; END IF;  -- the fence: this host was frozen until its lease expired
    IF limited IS NULL AND NOT coalesce(array_to_string(served, ',') LIKE '%*%', false)
       AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope <> 'queue' OR g.max_running IS NOT NULL) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- Cost: one query for all, since each of many queues may have a limit. A limit that looks free here is
    -- counted again under its lock, with the jobs that were claimed before it.
    SELECT coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind'), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.max_running IS NOT NULL), '{}')
      INTO shut_queues, shut_kinds, gated, limited_queues
      FROM (SELECT g.scope, g.name, g.max_running,
                   g.paused_at IS NOT NULL OR coalesce(u.jobs >= g.max_running, false) AS shut
              FROM jobherd.gates g LEFT JOIN (
                   SELECT 'queue' AS scope, r.queue AS name, count(*) AS jobs FROM jobherd.running r
                    WHERE r.limited_kind IS NOT NULL GROUP BY r.queue
                    UNION ALL
                   SELECT 'kind', r.limited_kind, count(*) FROM jobherd.running r
                    WHERE r.limited_kind IS NOT NULL GROUP BY r.limited_kind
                   ) AS u ON u.scope = g.scope AND u.name = g.name) AS g;
    shut_queues := shut_queues || coalesce(avoided, '{}');
    IF EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'all' AND g.paused_at IS NOT NULL) THEN
        RETURN;
    END IF;
    FOR turn IN 1..20 LOOP
        elsewhere := CASE WHEN turn = 20 THEN '*' ELSE elsewhere END;  -- not everything was searched: claim again
        -- The first job by served queue, priority and id that no pause or full limit holds: at the head of a queue, or
        -- parked.
        WITH RECURSIVE head AS (
            (SELECT r.queue, r.priority, r.id FROM jobherd.ready r ORDER BY r.queue, r.priority, r.id LIMIT 1)
            UNION ALL
            SELECT after.queue, after.priority, after.id
              FROM head h CROSS JOIN LATERAL (
                   SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue
                    ORDER BY r.queue, r.priority, r.id LIMIT 1
                   ) AS after
        ), aside AS (
            (SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p
              ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1)
            UNION ALL
            SELECT after.kind, after.queue, after.priority, after.id
              FROM aside a CROSS JOIN LATERAL (
                   SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p
                    WHERE (p.kind, p.queue) > (a.kind, a.queue)
                    ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1
                   ) AS after
        )
        SELECT c.queue, c.kind, c.priority, c.id INTO next
          FROM (SELECT h.queue, NULL::text AS kind, h.priority, h.id FROM head h WHERE among IS NULL
                UNION ALL
                SELECT a.queue, a.kind, a.priority, a.id FROM aside a WHERE among IS NULL AND a.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT r.queue, NULL, r.priority, r.id FROM jobherd.ready r
                 WHERE r.id = ANY (among) AND r.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT p.queue, p.kind, p.priority, p.id FROM jobherd.parked p
                 WHERE p.id = ANY (among) AND p.kind <> ALL (shut_kinds)) AS c
         WHERE c.queue <> ALL (shut_queues) AND jobherd.rank_queue(c.queue, served) IS NOT NULL
         ORDER BY jobherd.rank_queue(c.queue, served), c.priority, c.id
         LIMIT 1;
        EXIT WHEN NOT FOUND;

        own := limits[jobherd.rank_queue(next.queue, limited)];
        IF own IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_limit(1, me || ' ' || next.queue, held);
            had := had AND (SELECT count(*) FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child
                             WHERE r.queue = next.queue AND r.limited_kind IS NOT NULL AND c.supervisor = me) < own;
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;
        IF next.queue = ANY (limited_queues) THEN
            SELECT * INTO held, had FROM jobherd.lock_limit(2, next.queue, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = next.queue
                                          AND (g.paused_at IS NOT NULL
                                               OR jobherd.count_running(g.scope, g.name, g.limited_at)
                                                  >= g.max_running));
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;

        IF next.kind IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_limit(3, next.kind, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = next.kind
                                          AND (g.paused_at IS NOT NULL
                                               OR jobherd.count_running(g.scope, g.name, g.limited_at)
                                                  >= g.max_running));
            IF NOT had THEN
                shut_kinds := shut_kinds || next.kind;
                CONTINUE;
            END IF;
            DELETE FROM jobherd.parked p
             WHERE p.id = (SELECT o.id FROM jobherd.parked o
                            WHERE o.kind = next.kind AND o.queue = next.queue AND (among IS NULL OR o.id = ANY (among))
                            ORDER BY o.kind, o.queue, o.priority, o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING * INTO job;
            IF NOT FOUND THEN
                shut_kinds := shut_kinds || next.kind;  -- another session is canceling it
                CONTINUE;
            END IF;
            batch := ARRAY[job];
            single := job.kind;
            EXIT;
        END IF;

        aside := '{}';
        weight := 0;
        FOR job IN SELECT r.* FROM jobherd.ready r
                    WHERE r.queue = next.queue AND (r.priority, r.id) >= (next.priority, next.id)
                      AND (among IS NULL OR r.id = ANY (among))
                    ORDER BY r.priority, r.id LIMIT greatest(wanted, 100) FOR UPDATE SKIP LOCKED
        LOOP
            had := true;
            -- A parked job may come before this one: choose again. Order: before the lock of its limit is taken,
            -- because a claim that finds a lock taken relies on its holder to notify.
            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);
            IF job.kind = ANY (gated) THEN
                IF cardinality(taken) > 0 THEN EXIT; END IF;
                IF job.kind <> ALL (shut_kinds) THEN
                    SELECT * INTO held, had FROM jobherd.lock_limit(3, job.kind, held);
                    IF NOT had OR EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = job.kind
                                             AND (g.paused_at IS NOT NULL
                                                  OR jobherd.count_running(g.scope, g.name, g.limited_at)
                                                     >= g.max_running)) THEN
                        shut_kinds := shut_kinds || job.kind;
                    END IF;
                END IF;
                IF job.kind = ANY (shut_kinds) THEN
                    aside := aside || job.id;
                    CONTINUE;
                END IF;
                single := job.kind;
            ELSIF own IS NOT NULL OR next.queue = ANY (limited_queues) THEN
                single := job.kind;
            ELSE
                share := CASE WHEN job.alone THEN 2 WHEN kinds IS NULL THEN 0
                              ELSE coalesce(shares[array_position(kinds, job.kind)], 1) END
                         + (pg_column_size(job.payload)
                            + coalesce(pg_column_size(job.extras), 0))::real / 1000000::real;
                EXIT WHEN cardinality(taken) > 0 AND (weight >= 1 OR share >= 1 OR cardinality(taken) >= wanted);
                weight := weight + share;
            END IF;
            taken := taken || job.id;
            batch := batch || job;
            EXIT WHEN single IS NOT NULL;
        END LOOP;
        IF cardinality(aside) > 0 THEN
            -- A job whose id another parked job has gets a new one.
            WITH gone AS (DELETE FROM jobherd.ready WHERE id = ANY (aside) RETURNING ready AS job)
            INSERT INTO jobherd.parked
            SELECT p.*
              FROM gone g
             CROSS JOIN LATERAL jsonb_populate_record(
                   g.job, CASE WHEN EXISTS (SELECT FROM jobherd.parked o WHERE o.id = (g.job).id)
                               THEN jsonb_build_object('id', nextval('jobherd.job_ids')) ELSE '{}' END) AS p;
        END IF;
        IF cardinality(taken) > 0 THEN
            DELETE FROM jobherd.ready r WHERE r.id = ANY (taken);
            EXIT;
        ELSIF cardinality(aside) = 0 THEN
            shut_queues := shut_queues || next.queue;  -- other sessions have locked all its rows
            elsewhere := next.queue;
        END IF;
    END LOOP;

    IF batch IS NOT NULL THEN
        INSERT INTO jobherd.running (child, token, queue, limited_kind, jobs)
        VALUES (claim_gated.child, nextval('jobherd.tokens'), next.queue, single, batch)
        RETURNING running.token, running.queue, running.jobs INTO token, queue, jobs;
        more := EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = next.queue)
                OR EXISTS (SELECT FROM jobherd.parked p WHERE p.kind = single);
        -- A worker that found the lock taken, or no slot, may be idle by now: if there are more jobs, notify it.
        IF more AND single IS NOT NULL
           AND NOT EXISTS (SELECT FROM jobherd.gates g
                            WHERE ((g.scope = 'queue' AND g.name = next.queue)
                                   OR (g.scope = 'kind' AND g.name = single))
                              AND jobherd.count_running(g.scope, g.name, g.limited_at) >= g.max_running) THEN
            PERFORM jobherd.tell_sleepers(CASE WHEN single = ANY (gated) THEN '*' ELSE next.queue END);
        END IF;
    ELSE
        queue := elsewhere;
    END IF;
    IF (queue IS DISTINCT FROM left_queue
        AND (left_queue = ANY (limited_queues) OR jobherd.rank_queue(left_queue, coalesce(limited, '{}')) IS NOT NULL))
       OR (single IS DISTINCT FROM left_kind AND left_kind = ANY (gated)) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN left_kind = ANY (gated) THEN '*' ELSE left_queue END);
    END IF;
    IF token IS NOT NULL OR queue IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END $$;
