-- List the registered child processes, with what they hold; a child process that holds nothing has no times. Run
-- on users' request.
SELECT c.id, c.supervisor, c.slot, c.kind, c.pid, c.backend_pid, c.started_at,
       extract(epoch FROM clock_timestamp() - c.started_at)::double precision AS up_for,
       coalesce(sum(cardinality(r.jobs)), 0)::bigint AS running, min(r.claimed_at) AS claimed_at,
       extract(epoch FROM clock_timestamp() - min(r.claimed_at))::double precision AS held_for,
       (array_agg(r.jobs[1].kind ORDER BY r.claimed_at) FILTER (WHERE r.token IS NOT NULL))[1] AS job_kind,
       (array_agg(r.jobs[1].id ORDER BY r.claimed_at) FILTER (WHERE r.token IS NOT NULL))[1] AS job
  FROM jobherd.children c LEFT JOIN jobherd.running r ON r.child = c.id
 GROUP BY c.id
 ORDER BY c.supervisor, c.slot, c.kind
