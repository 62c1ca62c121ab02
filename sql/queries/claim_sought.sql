-- Take up to %(wanted)s jobs as claim_jobs.sql does, but seek where that walks. Run by a child that has found the walk to be long, for a
-- third more of the server's time than a short one takes (workers/stride.py).
--
-- head asks for each of the %(served)s queues by its name, or goes from queue to queue if none is named. In the queue %(past_queue)s, among the
-- jobs of %(past_priority)s, it starts behind %(past_id)s: up to there all have been claimed some time ago, and the dead rows of an old
-- snapshot are not walked past again. What comes back to life there, or was committed late, is seen by the next claim that walks. Other queues
-- and priorities are seen whole, from low on: the queues before that place, the more urgent jobs of its own queue, and what is behind it. Three
-- seeks and not two: an index scan does not stop at (queue, priority) < (a, b) before the end of the queue.
-- All else stands in claim_jobs.sql.
WITH RECURSIVE me AS MATERIALIZED (
    SELECT
      FROM jobherd.supervisors
     WHERE id = %(supervisor)s AND lease_until > clock_timestamp()
), head (step, queue, priority, id) AS (
    SELECT 0, '' COLLATE "C", NULL::smallint, NULL::bigint
    UNION ALL
    SELECT h.step + 1, first.queue, first.priority, first.id
      FROM head h
     CROSS JOIN LATERAL (
           SELECT coalesce((%(served)s::text[])[h.step + 1], h.queue), CASE WHEN %(served)s::text[] IS NULL THEN 32767 ELSE -32768 END::smallint,
                  CASE WHEN %(served)s::text[] IS NULL THEN 9223372036854775807 ELSE 0 END, coalesce((%(served)s::text[])[h.step + 1], '~')
           ) AS low (queue, priority, id, last)
     CROSS JOIN LATERAL (
           SELECT coalesce((%(past_queue)s::text, %(past_priority)s::smallint, %(past_id)s::bigint) > (low.queue, low.priority, low.id), false)
           ) AS it (lies_ahead)
      LEFT JOIN LATERAL (
           (SELECT r.queue, r.priority, r.id FROM jobherd.ready r
             WHERE it.lies_ahead AND (r.queue, r.priority, r.id) > (low.queue, low.priority, low.id) AND r.queue <= low.last
               AND r.queue < %(past_queue)s::text
             ORDER BY r.queue, r.priority, r.id LIMIT 1)
           UNION ALL
           (SELECT r.queue, r.priority, r.id FROM jobherd.ready r
             WHERE it.lies_ahead AND r.queue = %(past_queue)s::text AND r.queue <= low.last AND r.priority < %(past_priority)s::smallint
             ORDER BY r.priority, r.id LIMIT 1)
           UNION ALL
           (SELECT r.queue, r.priority, r.id FROM jobherd.ready r
             WHERE (r.queue, r.priority, r.id) > (CASE WHEN it.lies_ahead THEN %(past_queue)s::text ELSE low.queue END,
                                                  CASE WHEN it.lies_ahead THEN %(past_priority)s::smallint ELSE low.priority END,
                                                  CASE WHEN it.lies_ahead THEN %(past_id)s::bigint ELSE low.id END)
               AND r.queue <= low.last
             ORDER BY r.queue, r.priority, r.id LIMIT 1)
           ORDER BY queue, priority, id LIMIT 1
           ) AS first ON true
     WHERE CASE WHEN %(served)s::text[] IS NULL THEN first.id IS NOT NULL ELSE h.step < cardinality(%(served)s::text[]) END
), chosen AS MATERIALIZED (
    SELECT h.queue, h.priority, h.id
      FROM head h
     WHERE h.id IS NOT NULL AND (SELECT q.paused_at FROM jobherd.queues q WHERE q.name = h.queue) IS NULL AND (%(served)s::text[] IS NULL OR h.queue = ANY (%(served)s::text[]))
       AND (%(avoided)s::text[] IS NULL OR h.queue <> ALL (%(avoided)s::text[])) AND EXISTS (SELECT FROM me)
     ORDER BY array_position(%(served)s::text[], h.queue), h.priority, h.id
     LIMIT 1
), picked AS MATERIALIZED (
    SELECT ctid AS place,
           CASE WHEN alone THEN 2 WHEN %(kinds)s::text[] IS NULL THEN 0
                ELSE coalesce((%(shares)s::real[])[array_position(%(kinds)s::text[], kind)], 1) END AS share
      FROM jobherd.ready
     WHERE queue = (SELECT queue FROM chosen) AND (priority, id) >= ((SELECT priority FROM chosen), (SELECT id FROM chosen))
     ORDER BY priority, id
     LIMIT %(wanted)s
       FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT place, share, sum(share) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM picked
), taken AS (
    DELETE FROM jobherd.ready
     WHERE ctid = ANY (ARRAY(SELECT place FROM counted WHERE before IS NULL OR (before < 1 AND share < 1)))
    RETURNING *
), batch AS (
    INSERT INTO jobherd.running (child, token, queue, jobs)
    SELECT %(child)s, nextval('jobherd.tokens'), min(t.queue),
           array_agg((t.id, t.created_at, t.run_at, t.good_until, t.timeout, t.last_error, t.priority, t.attempts + 1::smallint,
                      t.max_attempts, t.crashes, t.alone, t.queue, t.kind, t.payload)::jobherd.ready ORDER BY t.priority, t.id)
      FROM taken t
    HAVING count(*) > 0
    RETURNING token
), relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
     WHERE %(short)s::text[] IS NOT NULL AND NOT EXISTS (SELECT FROM taken WHERE kind <> ALL (%(short)s::text[]))
)
SELECT b.token, t.id, t.kind, c.queue, t.payload::text AS payload, t.attempts + 1 AS attempts, t.max_attempts, t.crashes, t.priority,
       t.timeout, date_part('epoch', t.created_at) AS created_at,
       date_part('epoch', t.run_at) AS run_at,
       date_part('epoch', t.good_until - clock_timestamp()) AS good_for,
       date_part('epoch', clock_timestamp() - greatest(t.run_at, t.created_at)) AS waited,
       (SELECT EXISTS (SELECT FROM jobherd.ready r
                        WHERE r.queue = (SELECT queue FROM chosen) AND (r.priority, r.id) > (x.priority, x.id))
          FROM (SELECT priority, id FROM taken ORDER BY priority DESC, id DESC LIMIT 1) AS x) AS more
  FROM chosen c LEFT JOIN (taken t CROSS JOIN batch b) ON true LEFT JOIN relaxed ON true
 ORDER BY t.priority, t.id
