-- Measure when the last run of each schedule that completed did so, and the instant before the last one that ran or should
-- have. Both are in Unix time, of the schedules in %(names)s. Run by a web process for the metrics, if there are schedules.
-- It reads at most 100 runs and 1,000 instants of a schedule. A finished job that the history does not keep has completed,
-- as in jobherd.failed_runs. It returns 0 if none of the runs that it reads has completed, and null if there are none.
-- Only here the tables of jobs are read: while one of them is locked, the other metrics of schedules are measured.
SELECT s.name,
       (CASE WHEN success.at IS NOT NULL THEN extract(epoch FROM success.at) WHEN before.at IS NOT NULL THEN 0 END)::double precision
           AS succeeded,
       extract(epoch FROM before.at)::double precision AS previous
  FROM jobherd.schedules s
       LEFT JOIN LATERAL (SELECT coalesce(j.finished_at, r.noted_at) AS at
                            FROM (SELECT t.job, t.at, t.noted_at FROM jobherd.ticks t
                                   WHERE t.schedule = s.name AND t.decided IN ('ran', 'manual')
                                   ORDER BY t.at DESC LIMIT 100) AS r
                                 LEFT JOIN LATERAL (SELECT j.state, j.finished_at FROM jobherd.jobs j
                                                     WHERE j.id = r.job LIMIT 1) AS j ON true
                           WHERE coalesce(j.state, 'completed') = 'completed'
                           ORDER BY r.at DESC LIMIT 1) AS success ON true
       LEFT JOIN LATERAL (SELECT r.at
                            FROM (SELECT t.at, t.decided FROM jobherd.ticks t
                                   WHERE t.schedule = s.name ORDER BY t.at DESC LIMIT 1000) AS r
                           WHERE r.decided IN ('ran', 'held', 'missed')
                           ORDER BY r.at DESC OFFSET 1 LIMIT 1) AS before
              ON num_nonnulls(s.error, s.retired_at, s.paused_at) = 0
 WHERE s.name = ANY (%(names)s::text[])
