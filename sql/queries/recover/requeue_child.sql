-- Release what a dead child process had claimed and not started; its supervisor has recorded before what it had
-- started. Run by the supervisor, after the child's backend has ended: a claim that was in flight when the child
-- died still commits.
-- %(cleared)s: the child's claims of which a job has started. Any other claim may have killed the child: the
-- function `requeue` suspects its jobs, and fails a job with %(error)s that has crashed too often. Null: the child
-- did not crash.
WITH gone AS (
    DELETE FROM jobherd.children WHERE supervisor = %(supervisor)s AND incarnation = %(incarnation)s RETURNING id
), held AS (
    SELECT array_agg(r.child) AS children, array_agg(r.token) AS tokens,
           array_agg(coalesce(r.token <> ALL (%(cleared)s::bigint[]), false)) AS suspects
      FROM jobherd.running r JOIN gone ON gone.id = r.child
)
SELECT b.id
  FROM held h CROSS JOIN LATERAL jobherd.requeue(h.children, h.tokens, suspects => h.suspects, message => %(error)s::text) AS b
