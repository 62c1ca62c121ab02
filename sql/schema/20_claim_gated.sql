-- Claims under pauses, concurrency limits and rate limits, and in turns: the function jobherd.claim_gated.
--
-- A claim takes its tokens under the locks that it holds for concurrency limits (lock_limit), so claims under a
-- rate limit happen one after the other. If partitions of a queue take turns or have a limit, it asks pick_in_turn for
-- the jobs of that queue. It returns when the next token comes. A worker that has connected again after it settled a
-- job notifies the others.

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
-- none. If `opens` is set, a last row without a queue can follow, with the seconds until a rate limit lets the
-- next waiting job start: after a claim that found no job or took the last token. Jobs of a full or paused kind
-- at the head of a queue are moved to `parked`, and the search starts again: a job that was parked earlier may
-- come first. If partitions of a queue take turns, as many of its parked jobs as may start return to their lanes
-- first. Payload bytes count, as in claim_jobs: no claim is larger than PostgreSQL and a worker can handle.
CREATE FUNCTION jobherd.claim_gated(
    supervisor bigint, child bigint, served text[], avoided text[], wanted integer, kinds text[], shares real[],
    limited text[], limits integer[], left_queue text, left_kind text, among bigint[], opens boolean DEFAULT false,
    OUT token bigint, OUT queue text, OUT jobs jobherd.ready[], OUT more boolean, OUT opens_in double precision
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
    capped      text[];                             -- kinds with a concurrency limit
    limited_queues text[];                          -- queues with a limit
    capped_queues  text[];                          -- queues with a concurrency limit
    laned       text[];                             -- queues whose partitions take turns
    rule        jobherd.gates;                      -- of such a queue
    left_lane   text;                               -- of the last job that this session claimed there
    returned    text[] := '{}';                     -- kinds and such queues whose parked jobs this call has returned
    source      refcursor;
    rated       boolean;                            -- there are rate limits
    overfull    boolean;                            -- of one, more is used than there can be
    room        integer;                            -- the jobs that rate limits leave to this claim; null: any number
    left_over   integer;
    next        record;
    job         jobherd.ready;
    batch       jobherd.ready[];
    taken       bigint[] := '{}';
    aside       bigint[];
    weight      real;
    share       real;
    single      text;                               -- the kind of a job that is claimed alone
    together    text;                               -- the kind of all jobs of the claim, which has a rate limit
    own         integer;                            -- this supervisor's limit for the queue
    held        integer := 0;
    had         boolean;
    elsewhere   text;                               -- a queue whose rows are all locked by other sessions
BEGIN
    PERFORM FROM jobherd.supervisors s WHERE s.id = me AND s.lease_until > clock_timestamp();
    IF NOT FOUND THEN RETURN; END IF;  -- the fence: this host was frozen until its lease expired
    IF limited IS NULL AND NOT coalesce(array_to_string(served, ',') LIKE '%*%', false)
       AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope <> 'queue' OR num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- Cost: one query for all, since each of many queues may have a limit. A limit that looks free here is
    -- counted again under its lock, with the jobs that were claimed before it.
    SELECT coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind'), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind' AND g.max_running IS NOT NULL), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND (g.max_running IS NOT NULL OR g.rated)), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND (g.max_running IS NOT NULL OR g.each_running IS NOT NULL)), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.turns IS NOT NULL OR g.each_running IS NOT NULL), '{}'),
           coalesce(bool_or(g.rated OR g.each_rate IS NOT NULL), false), coalesce(bool_or(g.overfull), false)
      INTO shut_queues, shut_kinds, gated, capped, limited_queues, capped_queues, laned, rated, overfull
      FROM (SELECT g.scope, g.name, g.max_running, g.turns, g.each_running, g.each_rate, g.rate IS NOT NULL AS rated,
                   g.paused_at IS NOT NULL OR coalesce(u.jobs >= g.max_running, false) OR coalesce(t.tokens < 1, false)
                   AS shut, t.overfull
              FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL LEFT JOIN (
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
                SELECT a.queue, a.kind, a.priority, a.id FROM aside a
                 WHERE among IS NULL AND a.kind <> ALL (shut_kinds) AND a.kind || ' ' || a.queue <> ALL (returned)
                UNION ALL
                SELECT r.queue, NULL, r.priority, r.id FROM jobherd.ready r
                 WHERE r.id = ANY (among) AND r.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT p.queue, p.kind, p.priority, p.id FROM jobherd.parked p
                 WHERE p.id = ANY (among) AND p.kind <> ALL (shut_kinds) AND p.kind || ' ' || p.queue <> ALL (returned)) AS c
         WHERE c.queue <> ALL (shut_queues) AND jobherd.rank_queue(c.queue, served) IS NOT NULL
         ORDER BY jobherd.rank_queue(c.queue, served), (c.kind IS NOT NULL AND c.queue = ANY (laned)) DESC, c.priority, c.id
         LIMIT 1;
        EXIT WHEN NOT FOUND;

        room := NULL;
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
            room := jobherd.room_of(g) FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = next.queue;
            IF NOT had OR room < 1 THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;

        SELECT g.* INTO rule FROM jobherd.gates g
         WHERE next.queue = ANY (laned) AND g.scope = 'queue' AND g.name = next.queue;
        IF next.kind IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_limit(3, next.kind, held);
            left_over := jobherd.room_of(g) FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = next.kind;
            IF NOT had OR left_over < 1 THEN
                shut_kinds := shut_kinds || next.kind;
                CONTINUE;
            END IF;
        END IF;
        IF next.kind IS NOT NULL AND rule.name IS NOT NULL THEN
            PERFORM jobherd.return_parked(rule, next.kind, least(wanted, left_over), among);
            returned := returned || (next.kind || ' ' || next.queue);
            CONTINUE;
        ELSIF next.kind IS NOT NULL THEN
            IF own IS NOT NULL OR next.queue = ANY (capped_queues) OR next.kind = ANY (capped) OR left_over IS NULL THEN
                single := next.kind;
            END IF;
            weight := 0;
            FOR job IN SELECT o.* FROM jobherd.parked o
                        WHERE o.kind = next.kind AND o.queue = next.queue AND (among IS NULL OR o.id = ANY (among))
                        ORDER BY o.kind, o.queue, o.priority, o.id
                        LIMIT CASE WHEN single IS NULL THEN least(wanted, room, left_over) ELSE 1 END FOR UPDATE SKIP LOCKED
            LOOP
                share := jobherd.share_of(job, kinds, shares);
                EXIT WHEN batch IS NOT NULL AND (weight >= 1 OR share >= 1);
                weight := weight + share;
                taken := taken || job.id;
                batch := batch || job;
            END LOOP;
            IF batch IS NULL THEN
                shut_kinds := shut_kinds || next.kind;  -- another session is canceling it
                single := NULL;
                CONTINUE;
            END IF;
            DELETE FROM jobherd.parked p WHERE p.id = ANY (taken);
            EXIT;
        END IF;

        aside := '{}';
        weight := 0;
        IF rule.name IS NULL THEN
            OPEN source FOR SELECT r.* FROM jobherd.ready r
                            WHERE r.queue = next.queue AND (r.priority, r.id) >= (next.priority, next.id)
                              AND (among IS NULL OR r.id = ANY (among))
                            ORDER BY r.priority, r.id LIMIT greatest(wanted, 100) FOR UPDATE SKIP LOCKED;
        ELSE
            OPEN source FOR SELECT * FROM jobherd.pick_in_turn(rule, least(wanted, room), kinds, shares, among);
        END IF;
        LOOP
            FETCH source INTO job;
            EXIT WHEN NOT FOUND;
            IF job.id IS NULL THEN
                elsewhere := next.queue;
                EXIT;
            END IF;
            -- A parked job may come before this one: choose again. Order: before the lock of its limit is taken,
            -- because a claim that finds a lock taken relies on its holder to notify.
            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);
            IF job.kind = ANY (gated) THEN
                EXIT WHEN cardinality(taken) > 0 AND job.kind IS DISTINCT FROM together;
                IF together IS NULL AND job.kind <> ALL (shut_kinds) THEN
                    SELECT * INTO held, had FROM jobherd.lock_limit(3, job.kind, held);
                    left_over := jobherd.room_of(g) FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = job.kind;
                    IF NOT had OR left_over < 1 THEN
                        shut_kinds := shut_kinds || job.kind;
                    END IF;
                END IF;
                IF job.kind = ANY (shut_kinds) THEN
                    aside := aside || job.id;
                    CONTINUE;
                END IF;
            END IF;
            IF own IS NOT NULL OR next.queue = ANY (capped_queues) OR job.kind = ANY (capped)
               OR (job.kind = ANY (gated) AND left_over IS NULL) THEN
                single := job.kind;
            ELSE
                share := jobherd.share_of(job, kinds, shares);
                EXIT WHEN cardinality(taken) > 0 AND (weight >= 1 OR share >= 1 OR cardinality(taken) >= least(wanted, room)
                                                      OR job.kind <> together);
                weight := weight + share;
                IF job.kind = ANY (gated) AND together IS NULL THEN
                    together := job.kind;
                    room := least(room, left_over);
                END IF;
            END IF;
            taken := taken || job.id;
            batch := batch || job;
            EXIT WHEN single IS NOT NULL;
        END LOOP;
        CLOSE source;
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
            IF rule.name IS NOT NULL THEN
                left_lane := nullif(split_part(current_setting(jobherd.turn_setting(rule.name), true), ' ', 1), '');
                PERFORM jobherd.note_turn(rule, batch);
            END IF;
            EXIT;
        ELSIF cardinality(aside) = 0 THEN
            shut_queues := shut_queues || next.queue;
            IF rule.each_running IS NULL THEN
                elsewhere := next.queue;  -- other sessions have locked all its rows
            END IF;
        END IF;
    END LOOP;

    IF batch IS NOT NULL THEN
        -- Statements that settle a claim expect its jobs in the order in which the worker gets them.
        INSERT INTO jobherd.running (child, token, queue, limited_kind, jobs, lane)
        VALUES (claim_gated.child, nextval('jobherd.tokens'), next.queue, single,
                ARRAY(SELECT b FROM unnest(batch) AS b ORDER BY b.priority, b.id),
                CASE WHEN rule.each_running IS NOT NULL THEN batch[1].lane END)
        RETURNING running.token, running.queue, running.jobs INTO token, queue, jobs;
        more := EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = next.queue)
                OR EXISTS (SELECT FROM jobherd.parked p WHERE p.kind = batch[1].kind);
        IF rated THEN
            -- Order: after the claim has its time, so no window holds more starts than the limit allows.
            PERFORM jobherd.take_tokens(g, cardinality(batch)) FROM jobherd.gates g
              WHERE g.rate IS NOT NULL AND (g.scope, g.name) IN (('queue', next.queue), ('kind', batch[1].kind))
              ORDER BY g.scope DESC;
        END IF;
        IF rule.each_rate IS NOT NULL AND batch[1].lane IS NOT NULL THEN
            PERFORM jobherd.take_lane_token(rule, batch[1].lane);  -- in the same order
        END IF;
        -- A worker that found the lock taken, or no room, may be idle by now: if there are more jobs, notify it.
        IF more AND (single IS NOT NULL OR rated) THEN
            left_over := min(jobherd.room_of(g)) FROM jobherd.gates g
                          WHERE (g.scope, g.name) IN (('queue', next.queue), ('kind', batch[1].kind));
            IF left_over IS NULL AND rule.each_running IS NOT NULL AND own IS NULL THEN
                left_over := jobherd.room_in_lane(rule, batch[1].lane);
            END IF;
            IF left_over > 0 OR (left_over IS NULL AND single IS NOT NULL)
               OR (rule.each_rate IS NOT NULL AND jobherd.opened_lanes(next.queue) <> '{}') THEN
                PERFORM jobherd.tell_sleepers(CASE WHEN batch[1].kind = ANY (gated) THEN '*' ELSE next.queue END);
            END IF;
        END IF;
        -- Its slot in the lane of the job that this worker has just settled is left to other workers. A session that is
        -- new does not know that lane.
        IF left_queue = next.queue AND rule.each_running IS NOT NULL
           AND (left_lane IS NULL
                OR (left_lane <> coalesce(batch[1].lane, '') AND jobherd.room_in_lane(rule, left_lane) > 0)) THEN
            PERFORM jobherd.tell_sleepers(next.queue);
        END IF;
    ELSE
        queue := elsewhere;
    END IF;
    IF (queue IS DISTINCT FROM left_queue
        AND (left_queue = ANY (capped_queues) OR jobherd.rank_queue(left_queue, coalesce(limited, '{}')) IS NOT NULL))
       OR (single IS DISTINCT FROM left_kind AND left_kind = ANY (capped)) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN left_kind = ANY (gated) THEN '*' ELSE left_queue END);
    END IF;
    IF token IS NOT NULL OR queue IS NOT NULL THEN
        RETURN NEXT;
    END IF;
    IF overfull THEN PERFORM jobherd.correct_buckets(); END IF;
    IF rated AND opens AND (token IS NULL OR left_over = 0 OR rule.each_rate IS NOT NULL) THEN
        opens_in := jobherd.next_opening(served);
        IF opens_in IS NOT NULL THEN
            token := NULL; queue := NULL; jobs := NULL; more := NULL;
            RETURN NEXT;
        END IF;
    END IF;
END $$;
