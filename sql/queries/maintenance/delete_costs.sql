-- Delete the costs of jobs that no longer exist. Run by the maintenance process once an hour. A finished job
-- keeps its cost: it may be retried. A row that a producer has locked, which may change it, is left for the next
-- time: the maintenance process would wait for the producer, and delayed jobs for the maintenance process. The
-- running jobs are read once, into a hash (NOT IN): planned as a join, they were read again for each of these
-- jobs.
DELETE FROM jobherd.demands
 WHERE job IN (SELECT d.job FROM jobherd.demands d
                WHERE NOT EXISTS (SELECT FROM jobherd.waiting r WHERE r.id = d.job)
                  AND NOT EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = d.job)
                  AND d.job NOT IN (SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j)
                  AND NOT EXISTS (SELECT FROM jobherd.history h WHERE h.id = d.job)
                  FOR UPDATE OF d SKIP LOCKED)
