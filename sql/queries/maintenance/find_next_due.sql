-- Return the seconds until the earliest scheduled job is due; no row if none waits. Run by maintenance processes
-- to set their timer. Jobs that promote_due.sql leaves alone set no timer.
SELECT extract(epoch FROM run_at - clock_timestamp())::double precision AS due_in
  FROM jobherd.scheduled s
 WHERE (SELECT true FROM jobherd.ready r WHERE r.id = s.id) IS NULL
 ORDER BY run_at, id
 LIMIT 1
