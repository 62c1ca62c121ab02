-- Forget what jobs cost that are nowhere any more. Run by the keeper once an hour. A job that is over keeps it: it may be retried. What a producer has locked, who may
-- change it, is left for the next time: the keeper would wait for him, and delayed jobs for the keeper. What runs is read once, into a hash (NOT IN): planned as a join it
-- was read again for each of these jobs.
DELETE FROM jobherd.demands
 WHERE job IN (SELECT d.job FROM jobherd.demands d
                WHERE NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = d.job)
                  AND NOT EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = d.job)
                  AND d.job NOT IN (SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j)
                  AND NOT EXISTS (SELECT FROM jobherd.history h WHERE h.id = d.job)
                  FOR UPDATE OF d SKIP LOCKED)
