-- List the kinds that no worker has ever declared, among the first %(most)s ready jobs and as many scheduled
-- jobs.
SELECT w.kind, count(*) AS jobs, min(w.id) AS job
  FROM ((SELECT kind, id FROM jobherd.waiting ORDER BY id LIMIT %(most)s)
        UNION ALL (SELECT kind, id FROM jobherd.scheduled ORDER BY run_at, id LIMIT %(most)s)) AS w
 WHERE NOT EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = w.kind)
 GROUP BY w.kind
 ORDER BY jobs DESC, w.kind
