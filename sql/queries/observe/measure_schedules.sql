-- Measure the schedules, by name and state: how many, by how many seconds the next instant is late, and by how many the
-- last one was decided late. Run by a web process for the metrics. The names in %(names)s, which are already shown, come
-- first; from %(most)s names on, the schedules are one row for each state, with a null name.
SELECT clock_timestamp() AS asked_at, CASE WHEN s.place <= %(most)s::integer THEN s.name END AS schedule, s.state,
       count(*) AS schedules,
       coalesce(max(extract(epoch FROM clock_timestamp() - s.next_at)) FILTER (WHERE s.state = 'active'), 0)::double precision AS late,
       coalesce(max(t.delay), 0)::double precision AS delay
  FROM (SELECT s.name, coalesce(s.plan_from, s.next_at) AS next_at,
               CASE WHEN s.error IS NOT NULL THEN 'error' WHEN s.retired_at IS NOT NULL THEN 'retired'
                    WHEN s.paused_at IS NULL THEN 'active' WHEN s.paused_by = 'maintenance' THEN 'failing'
                    ELSE 'paused' END AS state,
               row_number() OVER (ORDER BY s.name = ANY (%(names)s::text[]) DESC, s.name) AS place
          FROM jobherd.schedules s) AS s
       LEFT JOIN LATERAL (SELECT CASE WHEN t.decided IN ('ran', 'held', 'missed', 'overlapped', 'merged')
                                      THEN extract(epoch FROM t.noted_at - t.at) END AS delay
                            FROM jobherd.ticks t WHERE t.schedule = s.name ORDER BY t.at DESC LIMIT 1) AS t ON true
 GROUP BY 2, 3
