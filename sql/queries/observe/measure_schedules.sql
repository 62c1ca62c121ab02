-- Measure the schedules, by name and state: how many, by how many seconds the next instant is late, by how many the last
-- one was decided late, when the last run that completed did so, and the instant before the last one that ran or should
-- have; both in Unix time. Run by a web process for the metrics. The names in %(names)s, which are already shown, come
-- first; from %(most)s names on, the schedules are one row for each state, with a null name and without these two times.
-- It reads at most 100 runs and 1,000 instants of a schedule. A finished job that the history does not keep has completed,
-- as in jobherd.failed_runs. It returns 0 if none of the runs that it reads has completed, and null if there are none.
SELECT clock_timestamp() AS asked_at, CASE WHEN s.place <= %(most)s::integer THEN s.name END AS schedule, s.state,
       count(*) AS schedules,
       coalesce(max(extract(epoch FROM clock_timestamp() - s.next_at)) FILTER (WHERE s.state = 'active'), 0)::double precision AS late,
       coalesce(max(t.delay), 0)::double precision AS delay,
       max(CASE WHEN success.at IS NOT NULL THEN extract(epoch FROM success.at) WHEN before.at IS NOT NULL THEN 0 END)::double precision
           AS succeeded,
       max(extract(epoch FROM before.at))::double precision AS previous
  FROM (SELECT s.name, coalesce(s.plan_from, s.next_at) AS next_at,
               CASE WHEN s.error IS NOT NULL THEN 'error' WHEN s.retired_at IS NOT NULL THEN 'retired'
                    WHEN s.paused_at IS NULL THEN 'active' WHEN s.paused_by = 'maintenance' THEN 'failing'
                    ELSE 'paused' END AS state,
               row_number() OVER (ORDER BY s.name = ANY (%(names)s::text[]) DESC, s.name) AS place
          FROM jobherd.schedules s) AS s
       LEFT JOIN LATERAL (SELECT CASE WHEN t.decided IN ('ran', 'held', 'missed', 'overlapped', 'merged')
                                      THEN extract(epoch FROM t.noted_at - t.at) END AS delay
                            FROM jobherd.ticks t WHERE t.schedule = s.name ORDER BY t.at DESC LIMIT 1) AS t ON true
       LEFT JOIN LATERAL (SELECT coalesce(j.finished_at, r.noted_at) AS at
                            FROM (SELECT t.job, t.at, t.noted_at FROM jobherd.ticks t
                                   WHERE t.schedule = s.name AND t.decided IN ('ran', 'manual')
                                   ORDER BY t.at DESC LIMIT 100) AS r
                                 LEFT JOIN LATERAL (SELECT j.state, j.finished_at FROM jobherd.jobs j
                                                     WHERE j.id = r.job LIMIT 1) AS j ON true
                           WHERE coalesce(j.state, 'completed') = 'completed'
                           ORDER BY r.at DESC LIMIT 1) AS success ON s.place <= %(most)s::integer
       LEFT JOIN LATERAL (SELECT r.at
                            FROM (SELECT t.at, t.decided FROM jobherd.ticks t
                                   WHERE t.schedule = s.name ORDER BY t.at DESC LIMIT 1000) AS r
                           WHERE r.decided IN ('ran', 'held', 'missed')
                           ORDER BY r.at DESC OFFSET 1 LIMIT 1) AS before
              ON s.place <= %(most)s::integer AND s.state = 'active'
 GROUP BY 2, 3
