-- List the actions in the audit log, at most %(most)s. Each is found by one probe of the index.
WITH RECURSIVE walk (action, step) AS (
    (SELECT a.action, 1 FROM jobherd.audit a ORDER BY a.action LIMIT 1)
    UNION ALL
    SELECT (SELECT a.action FROM jobherd.audit a WHERE a.action > w.action ORDER BY a.action LIMIT 1), w.step + 1
      FROM walk w
     WHERE w.action IS NOT NULL AND w.step < %(most)s::integer
)
SELECT action FROM walk WHERE action IS NOT NULL
