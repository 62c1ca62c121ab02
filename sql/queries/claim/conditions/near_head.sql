-- The job is among the first 500 of the chosen queue. Cost: without this limit, a claim that finds no job within
-- the budget would weigh every waiting job. It is an upper bound on the index of the claim's order, so the scan
-- ends there. For claim_job.sql and claim_jobs.sql only.
(priority, id) <= (
    coalesce((SELECT f.priority FROM jobherd.ready f WHERE f.queue = (SELECT queue FROM chosen)
               ORDER BY f.priority, f.id OFFSET 500 LIMIT 1), 32767::smallint),
    coalesce((SELECT f.id FROM jobherd.ready f WHERE f.queue = (SELECT queue FROM chosen)
               ORDER BY f.priority, f.id OFFSET 500 LIMIT 1), 9223372036854775807)
)
