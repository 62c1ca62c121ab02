-- The other supervisors that ran on this machine, with the processes they forked. Run by the parent once it is registered: which of
-- them are dead is known here and nowhere else.
SELECT s.id, s.pid, s.pid_started, c.pid AS child_pid, c.pid_started AS child_started
  FROM jobherd.supervisors s LEFT JOIN jobherd.children c ON c.supervisor = s.id
 WHERE s.machine = %(machine)s AND s.id <> %(supervisor)s
