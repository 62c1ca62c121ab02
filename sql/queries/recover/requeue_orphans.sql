-- Release running jobs whose child process is not registered: a claim of a child that was already given up
-- committed late. The same applies to children whose supervisor has no row: its row was deleted and its process
-- is dead, so no supervisor would ever reclaim them. Run by maintenance processes every few seconds. The attempt
-- stays counted and each job is next claimed alone, since it may have started. A claim that the transaction of
-- such a job still has locked is left for the next time, and so is a claim of a job whose id a ready job has
-- (see promote_due.sql). If two jobs return with one id, the second one gets another. A claim may have a
-- timestamp in the future: the clock was set back.
WITH stray AS (
    DELETE FROM jobherd.children c WHERE NOT EXISTS (SELECT FROM jobherd.supervisors s WHERE s.id = c.supervisor) RETURNING c.id
), free AS MATERIALIZED (
    SELECT r.child, r.token
      FROM jobherd.running r
     WHERE (NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = r.child) OR r.child IN (SELECT id FROM stray))
       AND NOT EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE (SELECT true FROM jobherd.ready w WHERE w.id = j.id))
       FOR UPDATE SKIP LOCKED
), held AS (
    SELECT array_agg(f.child) AS children, array_agg(f.token) AS tokens FROM free f
)
SELECT b.id
  FROM held h
 CROSS JOIN LATERAL jobherd.requeue(h.children, h.tokens, lost => true, message => 'its child was lost',
                                    detail => 'its child was lost: its claim was committed after the child was given up') AS b
