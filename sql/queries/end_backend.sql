-- End the database sessions of a dead child, its own and that of its jobs' transactions, and say whether one is still there (then ask
-- again). Run by the parent before it releases what the child held. The start time tells a session from another that got its pid.
SELECT count(pg_terminate_backend(a.pid)) AS alive
  FROM jobherd.children c
  CROSS JOIN LATERAL (VALUES (c.backend_pid, c.backend_started), (c.transaction_pid, c.transaction_started)) AS s (pid, started)
  JOIN pg_stat_activity a ON a.pid = s.pid AND a.backend_start = s.started
 WHERE c.supervisor = %(supervisor)s AND c.incarnation = %(incarnation)s
