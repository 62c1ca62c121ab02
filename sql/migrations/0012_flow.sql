-- Gates: what somebody has said about a queue, a kind or everything. Paused: nobody claims there. Capped: no more than so many of its jobs
-- are in `running` at any moment, whoever runs them on whatever host.
--
-- The rows of `running` are themselves the slots of a cap: a slot is taken by the insert of a claim and free with the delete of that row,
-- whoever deletes it, be it a settlement, the parent of a dead child or the one who reclaims a dead host. Nothing can leak, for
-- nothing else is kept. Counting and taking is one step under an advisory lock of the cap; the count is made by a statement that began
-- after the lock was had, or it would not see who took the last slot meanwhile (tests/models/slot.pml).
CREATE TABLE jobherd.gates (
    scope       text COLLATE "C" NOT NULL,          -- queue, kind, or all
    name        text COLLATE "C" NOT NULL,          -- of all: *
    paused_at   timestamptz,
    paused_by   text,
    reason      text,
    resume_at   timestamptz,                        -- when the keepers open it again
    max_running integer,
    capped_at   timestamptz,
    capped_by   text,                               -- @handler: it is what the handler declares
    PRIMARY KEY (scope, name),
    CONSTRAINT gates_scope_is_known CHECK (scope IN ('queue', 'kind', 'all') AND (scope = 'all') = (name = '*')),
    CONSTRAINT gates_say_something CHECK (paused_at IS NOT NULL OR max_running IS NOT NULL),
    CONSTRAINT gates_cap_is_a_count CHECK (max_running >= 1 AND (max_running IS NULL) = (capped_at IS NULL)),
    CONSTRAINT gates_resume_what_is_paused CHECK (resume_at IS NULL OR (paused_at IS NOT NULL AND isfinite(resume_at)))
);
INSERT INTO jobherd.gates (scope, name, paused_at, paused_by, reason)
SELECT 'queue', name, paused_at, paused_by, reason FROM jobherd.queues WHERE paused_at IS NOT NULL;
DROP TABLE jobherd.queues;

-- Parents call whoever is idle, and take back what is claimed and not started.
CREATE TRIGGER wake AFTER INSERT OR UPDATE OR DELETE ON jobherd.gates FOR EACH ROW EXECUTE FUNCTION jobherd.wake_paused();

-- Of a job that was claimed alone because gates were looked at for it, or null: a batch. What claims a capped job counts these.
ALTER TABLE jobherd.running ADD COLUMN kind text COLLATE "C";
CREATE INDEX running_by_kind ON jobherd.running (kind) WHERE kind IS NOT NULL;
CREATE INDEX running_alone_by_queue ON jobherd.running (queue) WHERE kind IS NOT NULL;

-- Ready jobs of a kind whose gate was shut when a claim met them. They stand aside, or each claim would walk over them anew to what lies
-- behind. To everybody else they are ready: a child of that table, so whoever reads `ready` sees them. Who claims says ONLY, and finds a row
-- by its place only in ONLY ready: places are a table's own.
CREATE TABLE jobherd.parked () INHERITS (jobherd.ready);
CREATE UNIQUE INDEX parked_in_claim_order ON jobherd.parked (queue, priority, id);
CREATE UNIQUE INDEX parked_by_kind ON jobherd.parked (kind, queue, priority, id);
CREATE UNIQUE INDEX parked_by_id ON jobherd.parked (id);
ALTER TABLE jobherd.parked SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- How many jobs of a queue or kind run. Those claimed before the cap stand in batches, which are opened only for that; ten seconds are
-- more than any claim takes that did not see the cap yet. In plpgsql, which keeps its plans: made anew for each cap they cost 70 us.
CREATE FUNCTION jobherd.count_running(scope text, name text, capped_at timestamptz) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF scope = 'queue' THEN
        RETURN (SELECT count(*) FROM jobherd.running r WHERE r.queue = count_running.name AND r.kind IS NOT NULL)
             + (SELECT coalesce(sum(cardinality(r.jobs)), 0) FROM jobherd.running r
                 WHERE r.kind IS NULL AND r.claimed_at < count_running.capped_at + interval '10 s' AND r.queue = count_running.name);
    END IF;
    RETURN (SELECT count(*) FROM jobherd.running r WHERE r.kind = count_running.name)
         + (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE r.kind IS NULL AND r.claimed_at < count_running.capped_at + interval '10 s' AND j.kind = count_running.name);
END $$;

-- What the caps are and how much of each is taken.
CREATE VIEW jobherd.caps AS
SELECT g.scope, g.name, g.max_running, jobherd.count_running(g.scope, g.name, g.capped_at) AS running, g.capped_at, g.capped_by
  FROM jobherd.gates g
 WHERE g.max_running IS NOT NULL;

-- The place of a queue in the list of those that are served, which may have prefixes ("batch*"): its own name counts before
-- them. Null: it is not served.
CREATE FUNCTION jobherd.rank_queue(queue text, served text[]) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN served IS NULL THEN 0 ELSE
        coalesce(array_position(served, queue),
                 (SELECT min(i) FROM generate_subscripts(served, 1) AS i
                   WHERE right(served[i], 1) = '*' AND starts_with(queue, left(served[i], -1)))) END
$$;

-- Tell whoever sleeps that there may be work in a queue, or, for a kind may wait in many, in any (*); see 0006 for the gate and the look, which stand in one expression there too.
CREATE FUNCTION jobherd.tell_sleepers(queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('jobherd.sleeps', true) = 'yes' OR (CASE WHEN NOT pg_try_advisory_xact_lock_shared(1785684584, 0) THEN true
             WHEN pg_try_advisory_lock(1785684584, 1 + (pg_backend_pid() & 15))
             THEN NOT pg_advisory_unlock(1785684584, 1 + (pg_backend_pid() & 15))
             ELSE true END) THEN
        PERFORM pg_notify('jobherd_jobs', queue);
    END IF;
END $$;

-- A slot is free: somebody who found none may sleep. The child that settles a job claims next, and sees it; all others tell.
CREATE FUNCTION jobherd.wake_held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = OLD.child AND c.backend_pid = pg_backend_pid()) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = OLD.kind) THEN '*'
                                           ELSE OLD.queue END);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER DELETE ON jobherd.running FOR EACH ROW WHEN (OLD.kind IS NOT NULL) EXECUTE FUNCTION jobherd.wake_held();

-- Take the lock of a cap until the end of the transaction. In the order of rank (a supervisor's own limit, queue, kind) one may wait for
-- it: whoever waits holds only locks of lower ranks, so nobody waits in a circle. Out of that order it is only tried.
CREATE FUNCTION jobherd.lock_cap(rank integer, name text, INOUT held integer, OUT had boolean) LANGUAGE plpgsql AS $$
BEGIN
    IF held < rank THEN
        PERFORM pg_advisory_xact_lock(1785684586, hashtext(rank || ' ' || name));
        had := true;
    ELSE
        had := pg_try_advisory_xact_lock(1785684586, hashtext(rank || ' ' || name));
    END IF;
    IF had THEN held := greatest(held, rank); END IF;
END $$;

-- Claim with an eye on gates, on prefixes of queues and on a supervisor's own limits: what claim_jobs.sql does where none of these is. Run by
-- a child whom that statement has sent here, or whose settings ask for it. A job under a cap is claimed alone, in a row of its own.
--
-- limited, limits: queues (or prefixes) of which this supervisor runs at most so many at a time. left_queue, left_kind: of the job that
-- this child has just settled: if that was capped, its slot may be left to others, who are told. among: the jobs that may be taken; null: all.
-- Returns one row with what was claimed; or one with a queue
-- alone, whose waiting rows are all in other hands; or one of nulls, when no gate is there and claim_jobs.sql does it better; or none.
CREATE FUNCTION jobherd.claim_gated(supervisor bigint, child bigint, served text[], avoided text[], wanted integer, kinds text[],
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
                              ELSE coalesce(shares[array_position(kinds, job.kind)], 1) END;
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

-- Queue or kind, as functions are given them; raises what is wrong with it.
CREATE FUNCTION jobherd.gate_of(what text, queue text, kind text, OUT scope text, OUT name text) LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (queue IS NULL) = (kind IS NULL) THEN
        RAISE EXCEPTION 'jobherd.%: give a queue or a kind%', what, CASE WHEN queue IS NULL THEN '' ELSE ', not both' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT jobherd.' || what || '(kind => ''mail:receipt'', ...).';
    END IF;
    IF queue = '*' THEN
        scope := 'all';
    ELSIF queue IS NOT NULL THEN
        scope := 'queue';
        IF queue !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(queue) > 63 THEN
            RAISE EXCEPTION 'jobherd.%: % is not a queue name', what, quote_literal(left(queue, 120))
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower-case letters, digits and _ . - , at most 63 characters.';
        END IF;
    ELSE
        scope := 'kind';
        IF kind !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(kind) > 100 THEN
            RAISE EXCEPTION 'jobherd.%: kind % is not a name like "mail:receipt"', what, quote_literal(left(kind, 120))
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower-case letters, digits and _ . : - , at most 100 characters.';
        END IF;
    END IF;
    name := coalesce(queue, kind);
END $$;

-- Nobody claims from a paused queue, or jobs of a paused kind; '*' for the queue is everything. What runs goes on. Paused again, it takes
-- the new words and time. True if it was not paused before.
--   SELECT jobherd.pause('mail', 'the provider is down', resume_at => now() + interval '1 hour');
DROP FUNCTION jobherd.pause(text, text);
CREATE FUNCTION jobherd.pause(queue text DEFAULT NULL, reason text DEFAULT NULL, kind text DEFAULT NULL, resume_at timestamptz DEFAULT NULL,
                              actor text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gate   record;
    paused boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('pause', queue, kind);
    IF pause.resume_at <= clock_timestamp() OR NOT isfinite(pause.resume_at) THEN
        RAISE EXCEPTION 'jobherd.pause: resume_at % is not in the future', pause.resume_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to pause until somebody resumes.';
    END IF;
    SELECT g.paused_at IS NOT NULL INTO paused FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    INSERT INTO jobherd.gates AS g (scope, name, paused_at, paused_by, reason, resume_at)
    VALUES (gate.scope, gate.name, clock_timestamp(), coalesce(actor, session_user), pause.reason, pause.resume_at)
    ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
       SET paused_at = coalesce(g.paused_at, excluded.paused_at), paused_by = excluded.paused_by,
           reason = coalesce(excluded.reason, g.reason), resume_at = excluded.resume_at;
    RETURN NOT coalesce(paused, false);
END $$;

-- True if it was paused.
DROP FUNCTION jobherd.resume(text);
CREATE FUNCTION jobherd.resume(queue text DEFAULT NULL, kind text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gate record;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('resume', queue, kind);
    UPDATE jobherd.gates g SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL
     WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NOT NULL AND g.max_running IS NOT NULL;
    IF FOUND THEN RETURN true; END IF;
    DELETE FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NULL;
    RETURN FOUND;
END $$;

-- No more than so many jobs of a queue or a kind run at a time, over all hosts; null takes the cap away. What runs above a new cap goes
-- on. Returns the cap there was.
--   SELECT jobherd.set_cap('media', 10);
--   SELECT jobherd.set_cap(kind => 'report:year', max_running => 3);
CREATE FUNCTION jobherd.set_cap(queue text DEFAULT NULL, max_running integer DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    gate   record;
    before integer;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('set_cap', queue, kind);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.set_cap: everything together has no cap'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Cap a queue or a kind, or start fewer workers.';
    ELSIF set_cap.max_running < 1 THEN
        RAISE EXCEPTION 'jobherd.set_cap: max_running % is not a number from 1', set_cap.max_running
            USING ERRCODE = 'invalid_parameter_value', HINT = 'To let nothing run, pause it: SELECT jobherd.pause(...).';
    END IF;
    SELECT g.max_running INTO before FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    IF set_cap.max_running IS NOT NULL THEN
        INSERT INTO jobherd.gates AS g (scope, name, max_running, capped_at, capped_by)
        VALUES (gate.scope, gate.name, set_cap.max_running, clock_timestamp(), coalesce(actor, session_user))
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET max_running = excluded.max_running, capped_at = coalesce(g.capped_at, excluded.capped_at), capped_by = excluded.capped_by;
    ELSE
        UPDATE jobherd.gates g SET max_running = NULL, capped_at = NULL, capped_by = NULL
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NOT NULL AND g.paused_at IS NOT NULL;
        DELETE FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NULL;
    END IF;
    RETURN before;
END $$;
