-- Put in the place of the walk of claim_jobs.sql: seek where that walks. Run by a child that has found the walk to be long, for a third more of
-- the server's time than a short one takes (workers/claim/scan_start.py).
--
-- way asks for each of the %(served)s queues by its name, or goes from queue to queue if none is named. In the queue %(past_queue)s, among the
-- jobs of %(past_priority)s, it starts behind %(past_id)s: up to there all have been claimed some time ago, and the dead rows of an old
-- snapshot are not walked past again. What was given back there, or was committed late, is seen by the next claim that walks; what came from a
-- delay or for a retry, by one that looks %(back)s: such jobs have an index of their own. It should want one job, for behind the one that came back
-- it walks. Other queues and priorities are seen whole, from low on: the queues before that place, the more urgent jobs of its own queue, and what is behind it. Three
-- seeks for these and not two: an index scan does not stop at (queue, priority) < (a, b) before the end of the queue.
way (step, queue, priority, id) AS (
    SELECT 0, '' COLLATE "C", NULL::smallint, NULL::bigint
    UNION ALL
    SELECT h.step + 1, first.queue, first.priority, first.id
      FROM way h
     CROSS JOIN LATERAL (
           SELECT coalesce((%(served)s::text[])[h.step + 1], h.queue), CASE WHEN %(served)s::text[] IS NULL THEN 32767 ELSE -32768 END::smallint,
                  CASE WHEN %(served)s::text[] IS NULL THEN 9223372036854775807 ELSE 0 END, coalesce((%(served)s::text[])[h.step + 1], '~')
           ) AS low (queue, priority, id, last)
     CROSS JOIN LATERAL (
           SELECT coalesce((%(past_queue)s::text, %(past_priority)s::smallint, %(past_id)s::bigint) > (low.queue, low.priority, low.id), false)
           ) AS it (lies_ahead)
      LEFT JOIN LATERAL (
           (SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r
             WHERE it.lies_ahead AND (r.queue, r.priority, r.id) > (low.queue, low.priority, low.id) AND r.queue <= low.last
               AND r.queue < %(past_queue)s::text
             ORDER BY r.queue, r.priority, r.id LIMIT 1)
           UNION ALL
           (SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r
             WHERE it.lies_ahead AND r.queue = %(past_queue)s::text AND r.queue <= low.last AND r.priority < %(past_priority)s::smallint
             ORDER BY r.priority, r.id LIMIT 1)
           UNION ALL
           (SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r
             WHERE %(back)s::boolean AND it.lies_ahead AND r.queue = %(past_queue)s::text AND r.queue <= low.last
               AND r.priority = %(past_priority)s::smallint AND r.id <= %(past_id)s::bigint AND r.run_at > r.created_at
             ORDER BY r.id LIMIT 1)
           UNION ALL
           (SELECT r.queue, r.priority, r.id FROM ONLY jobherd.ready r
             WHERE (r.queue, r.priority, r.id) > (CASE WHEN it.lies_ahead THEN %(past_queue)s::text ELSE low.queue END,
                                                  CASE WHEN it.lies_ahead THEN %(past_priority)s::smallint ELSE low.priority END,
                                                  CASE WHEN it.lies_ahead THEN %(past_id)s::bigint ELSE low.id END)
               AND r.queue <= low.last
             ORDER BY r.queue, r.priority, r.id LIMIT 1)
           ORDER BY queue, priority, id LIMIT 1
           ) AS first ON true
     WHERE CASE WHEN %(served)s::text[] IS NULL THEN first.id IS NOT NULL ELSE h.step < cardinality(%(served)s::text[]) END
), head AS (
    SELECT queue, priority, id FROM way WHERE id IS NOT NULL
),
