-- A part of a statement: replaces the walk of claim_jobs.sql, its scan from the first index entry of each queue,
-- by index seeks. Run by a worker that has found the walk to be long. It takes a third more server time than a
-- short walk (workers/claim/scan_start.py).
--
-- way seeks each of the %(served)s queues by its name, or goes from queue to queue if no names are given. In the
-- queue %(past_queue)s, among the jobs of priority %(past_priority)s, it starts after %(past_id)s: all jobs up
-- to there were claimed some time ago, and the dead rows that an old snapshot keeps are not read again. Jobs
-- that were released there, or committed late, are found by the next claim that walks. Jobs that became due
-- after a delay or for a retry are found by a claim with %(back)s: these have an index of their own. Such a
-- claim should want one job, because after the returned job it walks. All other queues and priorities are
-- searched whole, from `low` on: the queues before that position, the more urgent jobs of its own queue, and
-- everything after it. Three seeks for these and not two: an index scan for (queue, priority) < (a, b) does not
-- stop before the end of the queue.
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
             WHERE %(back)s::boolean AND it.lies_ahead AND r.queue = %(past_queue)s::text AND r.queue <= low.last
               AND r.priority = %(past_priority)s::smallint AND r.id <= %(past_id)s::bigint AND r.run_at > r.created_at
             ORDER BY r.id LIMIT 1)
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
), head AS (
    SELECT queue, priority, id FROM way WHERE id IS NOT NULL
),
