-- List the ancestors of a job, nearest first, at most %(most)s: its parent job, the parent of that, and so on.
-- The list ends at an ancestor that is no longer stored: its row has no kind.
WITH RECURSIVE up AS (
    SELECT 1 AS step, j.parent_id AS id FROM jobherd.jobs j WHERE j.id = %(id)s::bigint AND j.parent_id IS NOT NULL
    UNION ALL
    SELECT up.step + 1, next.parent_id
      FROM up CROSS JOIN LATERAL (SELECT j.parent_id FROM jobherd.jobs j WHERE j.id = up.id LIMIT 1) AS next
     WHERE next.parent_id IS NOT NULL AND up.step < %(most)s::integer
)
SELECT up.id, found.kind, found.queue, found.state, found.created_at, found.finished_at
  FROM up LEFT JOIN LATERAL (
       SELECT j.kind, j.queue, j.state, j.created_at, j.finished_at FROM jobherd.jobs j WHERE j.id = up.id LIMIT 1) AS found ON true
 ORDER BY up.step
