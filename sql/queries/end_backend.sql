-- End the database sessions of a dead child, and say whether any is still there (then ask again): its own, that of its jobs' transactions,
-- and the one in which a record of an application's table is worked, which goes by its name. Run by the parent before it releases what
-- the child held. The start time tells a session from another that got its pid. Other databases of the server have children of that number too,
-- and other schemas of this one.
SELECT count(pg_terminate_backend(a.pid)) AS alive
  FROM jobherd.children c
  JOIN pg_stat_activity a
    ON (a.pid = c.backend_pid AND a.backend_start = c.backend_started)
       OR (a.pid = c.transaction_pid AND a.backend_start = c.transaction_started)
       OR (a.application_name = 'jobherd:table:' || left('jobherd.', 25) || c.id AND a.datname = current_database())
 WHERE c.supervisor = %(supervisor)s AND c.incarnation = %(incarnation)s
