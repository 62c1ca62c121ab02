-- List jobs that wait for another attempt, by kind and error code, the largest group first, at most %(rows)s
-- groups. Reads the next %(most)s scheduled jobs by time and no more; if there are more, every row is `capped`.
-- Run by the dashboard, `jobherd top` and `jobherd doctor`.
WITH next AS MATERIALIZED (
    SELECT s.id, s.kind, s.queue, s.run_at, s.attempts, s.last_error FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
), found AS (
    SELECT n.kind, n.last_error ->> 'code' AS code, count(*) AS jobs, min(n.id) AS job, min(n.run_at) AS next_at, min(n.queue) AS queue
      FROM next n
     WHERE n.attempts > 0
     GROUP BY 1, 2
     ORDER BY 3 DESC, 1, 2
     LIMIT %(rows)s::integer
)
SELECT f.kind, f.code, f.queue, f.jobs, f.job, f.next_at,
       greatest(0, extract(epoch FROM f.next_at - clock_timestamp()))::double precision AS next_in, left(n.last_error ->> 'message', 300) AS error,
       (SELECT count(*) FROM next WHERE attempts > 0) AS total, (SELECT count(*) FROM next) >= %(most)s::bigint AS capped
  FROM found f JOIN next n ON n.id = f.job
 ORDER BY f.jobs DESC, f.kind, f.code
