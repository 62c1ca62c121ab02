-- List the jobs that pushes to a repository have caused after event %(after)s, and their states. Run by the
-- demo, for display.
SELECT e.id AS event, e.ref, e.change, e.commits, e.added, e.deleted, j.id AS job, j.kind, j.state, j.attempts, j.error,
       extract(epoch FROM j.finished_at - j.started_at)::double precision AS ran
  FROM jobherd.forge_push_events e
 CROSS JOIN LATERAL (SELECT * FROM jobherd.jobs v WHERE v.id = e.job UNION ALL SELECT * FROM jobherd.jobs v WHERE v.id = e.size_job) AS j
 WHERE e.repo = %(repo)s AND e.id > %(after)s
 ORDER BY j.id
