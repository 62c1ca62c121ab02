-- The job fits into the part of the supervisor's budget that its current claims leave free. No counter is kept:
-- the used part is the sum over the claims that are in `running` now, so whatever ends a claim, including a
-- crash, frees its part. The jobs of one claim run one after the other, so a claim uses as much as its largest
-- job.
--
-- starving is the job with a cost that has waited longest, of those near the heads of their queues that could
-- have been claimed for more than %(patience)s seconds and would fit into an empty host. Budget is reserved for
-- it: starving sees all that is free, every other job only the rest. It is determined again for each claim, so
-- nothing needs cleanup when it is claimed elsewhere, or canceled. Nothing is reserved for a job that these
-- workers do not claim because of a pause or limit, %(only_kinds)s, %(not_kinds)s or %(room)s.
-- Cost: the state does not depend on the job that is checked, so it is calculated once for each claim.
NOT EXISTS (
    SELECT
      FROM jsonb_each_text(coalesce((SELECT d.cost FROM jobherd.demands d WHERE d.job = id), %(costs)s::jsonb -> kind)) AS mine (name, amount)
     CROSS JOIN LATERAL (
           SELECT (
               WITH RECURSIVE held AS (
                   SELECT r.child, r.token, c.name, max(c.amount::numeric) AS amount
                     FROM jobherd.children ch
                     JOIN jobherd.running r ON r.child = ch.id
                    CROSS JOIN LATERAL unnest(r.jobs) AS j
                    CROSS JOIN LATERAL jsonb_each_text(
                          coalesce((SELECT d.cost FROM jobherd.demands d WHERE d.job = j.id), %(costs)s::jsonb -> j.kind)) AS c (name, amount)
                    WHERE ch.supervisor = %(supervisor)s
                    GROUP BY r.child, r.token, c.name
               ), room AS MATERIALIZED (
                   SELECT b.name, b.amount::numeric AS whole,
                          b.amount::numeric - coalesce((SELECT sum(h.amount) FROM held h WHERE h.name = b.name), 0) AS free
                     FROM jsonb_each_text(%(budget)s::jsonb) AS b (name, amount)
               ), head AS (
                   (SELECT queue FROM jobherd.waiting ORDER BY queue LIMIT 1)
                   UNION ALL
                   SELECT after.queue
                     FROM head h CROSS JOIN LATERAL (
                          SELECT r.queue FROM jobherd.waiting r WHERE r.queue > h.queue ORDER BY r.queue LIMIT 1
                          ) AS after
               ), starving AS MATERIALIZED (
                   SELECT w.id, w.cost
                     FROM head h
                    CROSS JOIN LATERAL (
                          SELECT r.id, greatest(r.run_at, r.created_at) AS since,
                                 coalesce((SELECT d.cost FROM jobherd.demands d WHERE d.job = r.id), %(costs)s::jsonb -> r.kind) AS cost
                            FROM (SELECT * FROM jobherd.waiting f WHERE f.queue = h.queue ORDER BY f.priority, f.id LIMIT 100) AS r
                           WHERE (%(only_kinds)s::text[] IS NULL OR r.kind = ANY (%(only_kinds)s::text[]))
                             AND (%(not_kinds)s::text[] IS NULL OR r.kind <> ALL (%(not_kinds)s::text[]))
                             AND NOT EXISTS (SELECT FROM jobherd.gates g
                                              WHERE (g.scope, g.name) IN (('queue', r.queue), ('kind', r.kind))
                                                AND (g.paused_at IS NOT NULL
                                                     OR jobherd.count_running(g.scope, g.name, g.limited_at) >= g.max_running))
                          ) AS w
                    WHERE jobherd.rank_queue(h.queue, %(served)s::text[]) IS NOT NULL
                      AND w.since < clock_timestamp() - make_interval(secs => %(patience)s::double precision)
                      AND EXISTS (SELECT FROM jsonb_each_text(w.cost) AS c (name, amount) JOIN room USING (name) WHERE c.amount::numeric > 0)
                      AND NOT EXISTS (SELECT FROM jsonb_each_text(w.cost) AS c (name, amount)
                                       WHERE c.amount::numeric > (%(room)s::jsonb ->> c.name)::numeric)
                      AND NOT EXISTS (SELECT FROM jsonb_each_text(w.cost) AS c (name, amount) JOIN room USING (name) WHERE c.amount::numeric > whole)
                    ORDER BY w.since, w.id
                    LIMIT 1
               )
               SELECT jsonb_build_object(
                          'starving', (SELECT s.id FROM starving s),
                          'free', jsonb_object_agg(name, free),
                          'left', jsonb_object_agg(name, free - coalesce((SELECT (s.cost ->> name)::numeric FROM starving s), 0)))
                 FROM room
           ) AS said
           OFFSET 0
           ) AS state
     WHERE mine.amount::numeric
           > (CASE WHEN id = (said ->> 'starving')::bigint THEN said -> 'free' ELSE said -> 'left' END ->> mine.name)::numeric
)
