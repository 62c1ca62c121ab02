-- What is paused or capped, and how much of each cap is taken. Run by people, and by a web child for the metrics.
SELECT g.scope, g.name, g.paused_at IS NOT NULL AS paused, g.paused_at, g.paused_by, g.reason, g.resume_at, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.capped_at) END AS running, g.capped_at, g.capped_by
  FROM jobherd.gates g
 ORDER BY g.scope, g.name
 LIMIT %(most)s::integer
