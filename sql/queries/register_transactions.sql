-- Enter the session in which a child's jobs have their transactions. Run by the child on that session, before the first of them.
UPDATE jobherd.children
   SET transaction_pid = pg_backend_pid(),
       transaction_started = jobherd.session_started()
 WHERE id = %(child)s
