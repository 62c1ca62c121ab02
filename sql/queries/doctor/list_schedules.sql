-- List the schedules that no user has paused: their error, whether they are retired, why failed runs have paused them,
-- how many seconds they are late, and whether a worker has declared their kind.
SELECT s.name, s.kind, s.error, s.retired_at IS NOT NULL AS retired,
       CASE WHEN s.paused_at IS NOT NULL THEN s.pause_reason END AS failing,
       extract(epoch FROM clock_timestamp() - coalesce(s.plan_from, s.next_at))::double precision AS late,
       EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = s.kind) AS declared
  FROM jobherd.schedules s
 WHERE s.paused_at IS NULL OR s.paused_by = 'maintenance'
 ORDER BY s.name
