-- Unregister a supervisor that exits: its lease ends, and the jobs that its child processes may still hold are
-- ready again at once, the attempt not counted. Jobs with a request to cancel are canceled. A job whose id a
-- ready job has gets another id, as in requeue_child.sql.
WITH me AS (
    DELETE FROM jobherd.supervisors WHERE id = %(supervisor)s RETURNING id
), gone AS (
    DELETE FROM jobherd.children c USING me WHERE c.supervisor = me.id RETURNING c.id
), held AS (
    SELECT array_agg(r.child) AS children, array_agg(r.token) AS tokens FROM jobherd.running r JOIN gone g ON g.id = r.child
)
SELECT count(*) FILTER (WHERE b.fate = 'ready') AS jobs FROM held h CROSS JOIN LATERAL jobherd.requeue(h.children, h.tokens) AS b
