-- End the session of a child's job transactions and say whether it is still there (then ask again). Run by the child on its own session
-- when the other one broke, or was torn out of a statement: what became of the transaction is only known once nobody works on it.
SELECT count(pg_terminate_backend(a.pid)) AS alive
  FROM jobherd.children c
  JOIN pg_stat_activity a ON a.pid = c.transaction_pid AND a.backend_start = c.transaction_started
 WHERE c.id = %(child)s
