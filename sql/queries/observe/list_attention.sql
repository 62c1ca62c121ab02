-- List what an operator should know of: jobs and flows that failed in the last %(since)s seconds, jobs that retry, pauses and limits
-- with a backlog, kinds without a handler, queues without a worker, schedules that do not run in time. Run by the
-- dashboard, `jobherd top` and `jobherd doctor`; no row if all is well.
--
-- Each part reads a bounded number of rows: %(most)s of each backlog and of the scheduled jobs, a tenth of that of the
-- jobs that did not complete and to find kinds, one for each queue. `jobs` of a row is a lower bound if it is `capped`. At most
-- %(names)s rows have the same `what`; `total` is how many there are.
WITH RECURSIVE troubled AS MATERIALIZED (
    SELECT h.state, h.finished_at FROM jobherd.history h WHERE h.state <> 'completed' ORDER BY h.id DESC LIMIT %(most)s::bigint / 10
), failed AS (
    -- The newest by id suffice unless there are more of them; then the rollup counts.
    SELECT CASE WHEN (SELECT count(*) FROM troubled) < %(most)s::bigint / 10
                THEN (SELECT count(*) FROM troubled t
                       WHERE t.state IN ('failed', 'expired') AND t.finished_at > clock_timestamp() - make_interval(secs => %(since)s))
                ELSE (SELECT coalesce(sum(f.jobs), 0)::bigint FROM jobherd.rollup_failures f
                       WHERE f.at > clock_timestamp() - make_interval(secs => %(since)s) AND f.state <> 'cancelled') END AS jobs
), next AS MATERIALIZED (
    SELECT s.attempts FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
), probed AS (
    (SELECT w.kind FROM jobherd.waiting w ORDER BY w.id LIMIT %(most)s::bigint / 10)
    UNION ALL
    (SELECT s.kind FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint / 10)
), blocked AS MATERIALIZED (
    SELECT g.scope, g.name, g.paused_at IS NOT NULL AS paused, g.max_running,
           CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running,
           CASE WHEN g.rate IS NOT NULL THEN (SELECT t.tokens FROM jobherd.tokens_of(g) AS t) END AS tokens,
           CASE g.scope
           WHEN 'queue' THEN (SELECT count(*) FROM (SELECT FROM jobherd.waiting w WHERE w.queue = g.name LIMIT %(most)s::bigint) AS w)
           WHEN 'kind' THEN (SELECT count(*) FROM (SELECT FROM jobherd.parked p WHERE p.kind = g.name LIMIT %(most)s::bigint) AS p)
                            + (SELECT count(*) FROM (SELECT r.kind FROM jobherd.ready r LIMIT %(most)s::bigint / 10) AS r WHERE r.kind = g.name)
           ELSE (SELECT count(*) FROM (SELECT FROM jobherd.waiting LIMIT %(most)s::bigint) AS w) END AS jobs
      FROM (SELECT * FROM jobherd.gates
             WHERE paused_at IS NOT NULL OR max_running IS NOT NULL OR rate IS NOT NULL
             ORDER BY paused_at IS NULL, scope, name LIMIT 100) AS g
), head AS (
    (SELECT queue, priority, id, 1 AS step FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1)
    UNION ALL
    SELECT after.queue, after.priority, after.id, h.step + 1
      FROM head h CROSS JOIN LATERAL (
           SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
           ) AS after
     WHERE h.step < %(most)s::bigint / 10
), fleet AS MATERIALIZED (
    SELECT count(*) AS workers, count(*) FILTER (WHERE NOT EXISTS (SELECT FROM jobherd.running r WHERE r.child = c.id)) AS idle
      FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
     WHERE c.kind IN ('worker', 'remote') AND s.lease_until > clock_timestamp()
), found AS (
    SELECT 'fleet' AS what, NULL::text AS scope, NULL::text AS name, 0::bigint AS jobs, false AS capped
      FROM fleet WHERE workers = 0 AND EXISTS (SELECT FROM jobherd.waiting)
    UNION ALL
    SELECT 'failed', NULL, NULL, jobs, false FROM failed WHERE jobs > 0
    UNION ALL
    SELECT 'flow', NULL, NULL, count(*), count(*) >= %(most)s::bigint
      FROM (SELECT FROM jobherd.flows f
             WHERE f.state = 'failed' AND f.outer_flow IS NULL AND f.ended_at > now() - make_interval(secs => %(since)s)
             LIMIT %(most)s::bigint) AS f
    HAVING count(*) > 0
    UNION ALL
    SELECT 'retrying', NULL, NULL, count(*) FILTER (WHERE attempts > 0), count(*) >= %(most)s::bigint FROM next HAVING count(*) FILTER (WHERE attempts > 0) > 0
    UNION ALL
    SELECT 'paused', scope, name, jobs, jobs >= %(most)s::bigint FROM blocked WHERE paused AND jobs > 0
    UNION ALL
    SELECT 'limit', scope, name, jobs, jobs >= %(most)s::bigint FROM blocked
     WHERE NOT paused AND (jobs > 0 AND (running >= max_running OR tokens < 1) OR running > max_running)
    UNION ALL
    SELECT 'kind', NULL, p.kind, count(*), count(*) >= %(most)s::bigint / 10 FROM probed p
     WHERE NOT EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = p.kind)
     GROUP BY p.kind
    UNION ALL
    SELECT 'queue', NULL, h.queue, 0, false
      FROM head h JOIN jobherd.ready r ON r.id = h.id
     WHERE (SELECT idle FROM fleet) > 0
       AND greatest(r.run_at, r.created_at) < clock_timestamp() - make_interval(secs => %(late)s)
       AND NOT EXISTS (SELECT FROM jobherd.gates g
                        WHERE g.paused_at IS NOT NULL AND (g.scope, g.name) IN (('queue', h.queue), ('kind', r.kind), ('all', '*')))
       AND NOT EXISTS (SELECT FROM jobherd.running x WHERE x.queue = h.queue)
    UNION ALL
    SELECT 'schedule', NULL, s.name, 0, false
      FROM jobherd.schedules s
     WHERE s.retired_at IS NULL
       AND (s.error IS NOT NULL OR s.paused_by = 'maintenance'
            OR s.paused_at IS NULL AND coalesce(s.plan_from, s.next_at) < clock_timestamp() - make_interval(secs => %(late)s))
)
SELECT f.what, f.scope, f.name, f.jobs, f.capped, f.total
  FROM (SELECT found.*, count(*) OVER (PARTITION BY what) AS total, row_number() OVER (PARTITION BY what ORDER BY jobs DESC, scope, name) AS place
          FROM found) AS f
 WHERE f.place <= %(names)s::integer
 ORDER BY array_position('{fleet,failed,flow,retrying,paused,limit,kind,queue,schedule}', f.what), f.place
