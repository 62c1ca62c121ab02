-- The job is among the first 500 of the chosen queue. Behind as many that do not fit nothing is looked for: a claim that finds no room
-- would else weigh everything that waits. An upper bound on the index of the claim's order, so the walk ends there; in claim_job(s).sql only.
(priority, id) <= (
    coalesce((SELECT f.priority FROM ONLY jobherd.ready f WHERE f.queue = (SELECT queue FROM chosen)
               ORDER BY f.priority, f.id OFFSET 500 LIMIT 1), 32767::smallint),
    coalesce((SELECT f.id FROM ONLY jobherd.ready f WHERE f.queue = (SELECT queue FROM chosen)
               ORDER BY f.priority, f.id OFFSET 500 LIMIT 1), 9223372036854775807)
)
