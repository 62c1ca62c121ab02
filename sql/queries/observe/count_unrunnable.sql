-- Count what the first %(most)s scheduled jobs of the served queues lack on this host: a key, or a handler of
-- their kind. Run by `run --until-empty` before it exits, and by `jobherd doctor`.
SELECT w.last_error ->> 'code' AS code, count(*) AS jobs, min(w.id) AS job
  FROM (SELECT id, last_error FROM jobherd.scheduled
         WHERE jobherd.rank_queue(queue, %(served)s::text[]) IS NOT NULL ORDER BY run_at, id LIMIT %(most)s) AS w
 WHERE w.last_error ->> 'code' IN ('KEY_MISSING', 'WORKER_RESOLUTION_ERROR')
 GROUP BY 1
 ORDER BY 1
