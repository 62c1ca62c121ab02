-- List these jobs with their states, newest first, and of a job that did not complete the flow that ended without it.
-- Run by the dashboard before an action on them, to count them.
WITH members AS MATERIALIZED (
    SELECT h.id, f.id AS flow
      FROM jobherd.history h JOIN jobherd.flows f ON f.id = (h.extras).flow
     WHERE h.id = ANY (%(ids)s::bigint[]) AND h.state <> 'completed' AND f.state IN ('failed', 'cancelled')
)
SELECT j.id, j.state, m.flow FROM jobherd.jobs j LEFT JOIN members m ON m.id = j.id WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
