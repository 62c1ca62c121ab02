-- Claim jobs and respect concurrency limits, pauses of kinds, prefixes among the queues and this supervisor's
-- own limits. Run by a worker that claim_jobs.sql has sent here, or whose settings require it. Returns the rows
-- of that statement. One row without an id and a queue means that no pause or limit is left: claim_jobs.sql is
-- cheaper then. If such a row has a number in `waited`, it is the last one and says: no job waits that may start
-- now, and a rate limit lets the next one start in so many seconds. See schema/20_claim_gated.sql.
--
-- The jobs that a before_claim hook admits are searched among the first 2,000 jobs that are neither paused nor
-- over a limit.
-- The function takes a new snapshot of the running jobs each time it has locked a limit; a single statement has
-- only one snapshot.
--
-- If %(turns)s is given, the queues that hold jobs are put in that order before the function sees them, within
-- the tiers that %(tiers)s assigns to each of %(served)s. The function compares each queue with that order, so
-- it has 64 places; further queues come after them. A queue that gets its first job later is missing in it: that
-- job causes a notification, and the worker claims again before it becomes idle.
WITH RECURSIVE head AS (
    (SELECT queue FROM jobherd.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT after.queue
      FROM head h CROSS JOIN LATERAL (SELECT r.queue FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue LIMIT 1) AS after
), aside AS (
    (SELECT kind, queue FROM jobherd.parked ORDER BY kind, queue LIMIT 1)
    UNION ALL
    SELECT after.kind, after.queue
      FROM aside a
     CROSS JOIN LATERAL (SELECT p.kind, p.queue FROM jobherd.parked p WHERE (p.kind, p.queue) > (a.kind, a.queue) ORDER BY p.kind, p.queue LIMIT 1) AS after
), first (queues) AS (
    SELECT ARRAY(SELECT q.queue
                   FROM (SELECT queue FROM head UNION SELECT queue FROM aside) AS q
                  WHERE jobherd.rank_queue(q.queue, %(served)s::text[]) IS NOT NULL
                  ORDER BY (%(tiers)s::integer[])[jobherd.rank_queue(q.queue, %(served)s::text[])],
                           array_position(%(turns)s::text[], q.queue) NULLS FIRST, random()
                  LIMIT 64)
), ordered (queues) AS MATERIALIZED (
    SELECT CASE WHEN %(turns)s::text[] IS NULL THEN %(served)s::text[]
                ELSE (SELECT queues || coalesce(%(served)s::text[], CASE WHEN cardinality(queues) = 64 THEN ARRAY['*'] END) FROM first) END
), among AS MATERIALIZED (
    SELECT id
      FROM jobherd.waiting AS ready
     WHERE %(narrowed)s::boolean AND jobherd.rank_queue(queue, %(served)s::text[]) IS NOT NULL
       AND NOT EXISTS (SELECT FROM jobherd.gates g
                        WHERE (g.scope, g.name) IN (('queue', ready.queue), ('kind', ready.kind))
                          AND jobherd.room_of(g) < 1)
       -- AND the conditions of this claim
     ORDER BY queue, priority, id
     LIMIT 2000
), claimed AS MATERIALIZED (
    SELECT token, queue, jobs, more, opens_in
      FROM jobherd.claim_gated(%(supervisor)s::bigint, %(child)s::bigint, (SELECT queues FROM ordered), %(avoided)s::text[], %(wanted)s::integer,
                               %(kinds)s::text[], %(shares)s::real[], %(limited)s::text[], %(limits)s::integer[], %(left_queue)s::text,
                               %(left_kind)s::text,
                               CASE WHEN %(narrowed)s::boolean THEN ARRAY(SELECT id FROM among) END, true)
), relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
     -- Cost: even a claim that finds nothing has locked a row; its commit need not wait for the disk.
     WHERE NOT EXISTS (SELECT FROM claimed c CROSS JOIN LATERAL unnest(c.jobs) AS j
                        WHERE %(short)s::text[] IS NULL OR j.kind <> ALL (%(short)s::text[]))
)
SELECT c.token, j.id, j.kind, c.queue, j.payload::text AS payload, j.attempts + 1 AS attempts, j.max_attempts, j.crashes, j.priority,
       j.timeout, date_part('epoch', j.created_at) AS created_at,
       date_part('epoch', j.run_at) AS run_at,
       date_part('epoch', j.expires_at - clock_timestamp()) AS good_for,
       coalesce(c.opens_in, date_part('epoch', clock_timestamp() - greatest(j.run_at, j.created_at))) AS waited,
       c.more,
       CASE WHEN NOT j.extras IS NULL THEN to_json(j.extras)::text END AS extras
  FROM claimed c LEFT JOIN LATERAL unnest(c.jobs) AS j ON true
 WHERE (SELECT count(*) FROM relaxed) >= 0
 ORDER BY j.priority, j.id
