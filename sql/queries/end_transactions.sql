-- End the session of a child's job transactions and say whether it is still there (then ask again). Run by the child on its own session
-- when the other one broke, or was torn out of a statement: what became of the transaction is only known once nobody works on it.
SELECT count(*) FILTER (WHERE jobherd.end_session(c.transaction_pid, c.transaction_started) <> 'gone') AS alive
  FROM jobherd.children c
 WHERE c.id = %(child)s AND c.transaction_pid IS NOT NULL
