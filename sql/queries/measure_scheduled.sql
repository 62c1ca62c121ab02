-- Scheduled jobs by queue, and for how long the earliest of each is overdue (0: none is). Run by a web child for the metrics.
-- Reads the next %(most)s by time and no more; when it had to stop there, every depth is `capped`: at least so many.
WITH next AS MATERIALIZED (
    SELECT s.queue, s.run_at FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
)
SELECT n.queue, count(*) AS jobs, (SELECT count(*) FROM next) >= %(most)s::bigint AS capped,
       greatest(0, extract(epoch FROM clock_timestamp() - min(n.run_at)))::double precision AS oldest
  FROM next n
 GROUP BY n.queue
 ORDER BY min(n.run_at)
 LIMIT %(queues)s::integer
