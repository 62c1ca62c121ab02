-- Find the running jobs of the sessions that this gateway serves for which a request to cancel is committed. Run
-- by the gateway as the supervisor runs find_cancels.sql: when it is notified, and from time to time.
-- Parameters: supervisor (of this gateway). Columns: session, token, job.
-- Cost: without any request no claim is read.
SELECT DISTINCT s.id AS session, r.token, x.job
  FROM jobherd.supervisors s
  JOIN jobherd.children c ON c.supervisor = s.id
  JOIN jobherd.running r ON r.child = c.id
 CROSS JOIN LATERAL unnest(r.jobs) AS j
  JOIN jobherd.cancels x ON x.job = j.id
 WHERE s.via = %(supervisor)s AND EXISTS (SELECT FROM jobherd.cancels)
