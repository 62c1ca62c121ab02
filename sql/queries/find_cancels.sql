-- The running jobs of a supervisor's children that somebody asked to cancel. Run by the parent when it is told, and at each beat.
SELECT c.incarnation, r.token, job.id
  FROM jobherd.children c
  JOIN jobherd.running r ON r.child = c.id
  CROSS JOIN LATERAL unnest(r.cancelled) AS job (id)
 WHERE c.supervisor = %(supervisor)s
