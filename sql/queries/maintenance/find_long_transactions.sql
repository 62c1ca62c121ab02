-- Find the jobs of a supervisor's child processes whose own transaction has been open for longer than
-- %(seconds)s, and for how long. Run by maintenance processes, from time to time: as long as it is open, vacuum
-- can remove no row in the database that was updated or deleted since.
SELECT job.id, job.kind, date_part('epoch', clock_timestamp() - a.xact_start) AS seconds
  FROM jobherd.children c
  JOIN pg_stat_activity a ON a.pid = c.transaction_pid AND a.backend_start = c.transaction_started
  JOIN jobherd.running r ON r.child = c.id
  CROSS JOIN LATERAL unnest(r.jobs) AS job
 WHERE c.supervisor = %(supervisor)s AND a.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s::double precision)
