-- A supervisor leaves: its lease ends, and what its children may still hold is ready again at once, the attempt given back.
WITH me AS (
    DELETE FROM jobherd.supervisors WHERE id = %(supervisor)s RETURNING id
), gone AS (
    DELETE FROM jobherd.children c USING me WHERE c.supervisor = me.id RETURNING c.id
), held AS (
    DELETE FROM jobherd.running r USING gone g WHERE r.child = g.id RETURNING r.jobs
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload)
    SELECT j.id, j.created_at, j.run_at, j.good_until, j.timeout, j.last_error, j.priority, greatest(j.attempts - 1, 0), j.max_attempts,
           j.crashes, j.alone, j.queue, j.kind, j.payload
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
    RETURNING id
)
SELECT (SELECT count(*) FROM back) AS jobs
