-- List the pauses and concurrency limits, and how much of each limit is used. Run on users' request, and by a
-- web process for the metrics.
SELECT g.scope, g.name, g.paused_at IS NOT NULL AS paused, g.paused_at, g.paused_by, g.reason, g.resume_at, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running, g.limited_at, g.limited_by
  FROM jobherd.gates g
 ORDER BY g.scope, g.name
 LIMIT %(most)s::integer
