-- List the claims that have run for longest, at most %(most)s: the first job of each, and how many jobs it still
-- holds. The table is as small as the fleet. The jobs are read only of the claims that are shown.
WITH oldest AS MATERIALIZED (
    SELECT r.child, r.token, r.claimed_at FROM jobherd.running r ORDER BY r.claimed_at LIMIT %(most)s::integer
)
SELECT j.id, j.kind, r.queue, j.attempts + 1 AS attempts, cardinality(r.jobs) AS jobs, r.claimed_at,
       extract(epoch FROM clock_timestamp() - r.claimed_at)::double precision AS seconds, s.host, c.pid,
       (p.progress ->> 'fraction')::double precision AS fraction, left(p.progress ->> 'note', 200) AS note
  FROM oldest o
  JOIN jobherd.running r ON r.child = o.child AND r.token = o.token
 CROSS JOIN LATERAL (SELECT (r.jobs[1]).*) AS j
  LEFT JOIN jobherd.children c ON c.id = r.child
  LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor
  LEFT JOIN jobherd.progress p ON p.job = j.id AND p.token = r.token
 ORDER BY r.claimed_at
