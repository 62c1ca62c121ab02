-- End the session of a child process's job transactions, and return whether it still exists (then ask again).
-- Run by the child process on its own session when the other one broke or was interrupted in a statement: the
-- result of the transaction is only known once its backend has ended.
SELECT count(*) FILTER (WHERE jobherd.end_session(c.transaction_pid, c.transaction_started) <> 'gone') AS alive
  FROM jobherd.children c
 WHERE c.id = %(child)s AND c.transaction_pid IS NOT NULL
