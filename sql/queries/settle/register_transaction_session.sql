-- Register the session in which a child process's jobs have their transactions. Run by the child process on that
-- session, before the first of them.
UPDATE jobherd.children
   SET transaction_pid = pg_backend_pid(),
       transaction_started = jobherd.session_started()
 WHERE id = %(child)s
