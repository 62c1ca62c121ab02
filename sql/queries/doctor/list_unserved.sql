-- List the queues that no worker serves: their first job has been due for more than %(late)s seconds although it
-- is not paused, nothing of the queue runs, and a worker is idle. Parked jobs are not counted: a worker that
-- serves the queue put them aside for a limit or a pause. Each queue costs one probe of the index, whatever its
-- length.
WITH RECURSIVE head AS (
    (SELECT queue, priority, id FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1)
    UNION ALL
    SELECT after.queue, after.priority, after.id
      FROM head h CROSS JOIN LATERAL (
           SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
           ) AS after
), idle AS (
    SELECT count(*) AS workers
      FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
     WHERE c.kind IN ('worker', 'remote') AND s.lease_until > clock_timestamp()
       AND NOT EXISTS (SELECT FROM jobherd.running r WHERE r.child = c.id)
)
SELECT h.queue, r.kind, r.id, extract(epoch FROM clock_timestamp() - greatest(r.run_at, r.created_at))::double precision AS waited,
       idle.workers AS idle
  FROM head h JOIN jobherd.ready r ON r.id = h.id CROSS JOIN idle
 WHERE greatest(r.run_at, r.created_at) < clock_timestamp() - make_interval(secs => %(late)s)
   AND NOT EXISTS (SELECT FROM jobherd.gates g
                    WHERE g.paused_at IS NOT NULL AND (g.scope, g.name) IN (('queue', h.queue), ('kind', r.kind), ('all', '*')))
   AND NOT EXISTS (SELECT FROM jobherd.running x WHERE x.queue = h.queue)
 ORDER BY waited DESC
