-- End the database session of a dead child, and say whether it is still there (then ask again). Run by the parent before it
-- releases what the child held. The start time tells the session from another that got its pid.
SELECT count(pg_terminate_backend(a.pid)) AS alive
  FROM jobherd.children c
  JOIN pg_stat_activity a ON a.pid = c.backend_pid AND a.backend_start = c.backend_started
 WHERE c.supervisor = %(supervisor)s AND c.incarnation = %(incarnation)s
