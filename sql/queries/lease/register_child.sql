-- Register a child process under its supervisor. Run by the child process on its own connection. No row means
-- that the supervisor has been reclaimed.
INSERT INTO jobherd.children (supervisor, incarnation, slot, kind, pid, pid_started, backend_started)
SELECT s.id, %(incarnation)s::integer, %(slot)s::smallint, %(kind)s, %(pid)s::integer, %(pid_started)s::bigint,
       jobherd.session_started()
  FROM jobherd.supervisors s
 WHERE s.id = %(supervisor)s
ON CONFLICT (supervisor, incarnation) DO UPDATE
   SET backend_pid = pg_backend_pid(), backend_started = excluded.backend_started
RETURNING id, backend_pid
