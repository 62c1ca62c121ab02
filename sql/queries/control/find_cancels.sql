-- Find the running jobs of a supervisor's child processes for which a request to cancel is committed. Run by the
-- supervisor when it is notified, at each renewal of the lease, and each second while a job runs for longer than
-- that.
-- Cost: without any request no claim is read; their jobs would be fetched from TOAST.
SELECT DISTINCT c.incarnation, r.token, x.job
  FROM jobherd.children c
  JOIN jobherd.running r ON r.child = c.id
  CROSS JOIN LATERAL unnest(r.jobs) AS j
  JOIN jobherd.cancels x ON x.job = j.id
 WHERE c.supervisor = %(supervisor)s AND EXISTS (SELECT FROM jobherd.cancels)
