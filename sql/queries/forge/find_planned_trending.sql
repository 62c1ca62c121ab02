-- Find the planned trending:compute, if it is another job than %(job)s and is waiting or running. Run under the
-- lock of the plan.
SELECT p.job
  FROM jobherd.forge_trending_plan p
 WHERE p.job <> %(job)s
   AND (EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = p.job) OR EXISTS (SELECT FROM jobherd.waiting r WHERE r.id = p.job)
        OR EXISTS (SELECT FROM jobherd.running w CROSS JOIN LATERAL unnest(w.jobs) AS j WHERE j.id = p.job))
