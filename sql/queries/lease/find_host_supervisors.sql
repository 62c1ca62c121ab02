-- List the other supervisors that ran on this host, with the processes they forked. Run by the supervisor once
-- it is registered: only this host can check which of them are dead.
SELECT s.id, s.pid, s.pid_started, c.pid AS child_pid, c.pid_started AS child_started
  FROM jobherd.supervisors s LEFT JOIN jobherd.children c ON c.supervisor = s.id
 WHERE s.machine = %(machine)s AND s.id <> %(supervisor)s
