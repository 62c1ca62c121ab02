-- Count the scheduled jobs by queue, and how long the earliest of each is overdue (0: none is). Run by a web
-- process for the metrics. Reads the next %(most)s by time and no more. If there are more, every depth is
-- `capped`: at least that many. Of more than %(queues)s queues besides those in %(names)s, the later ones are
-- summed under a null name.
WITH next AS MATERIALIZED (
    SELECT s.queue, s.run_at FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
), found AS (
    SELECT n.queue, count(*) AS jobs, min(n.run_at) AS first,
           row_number() OVER (ORDER BY n.queue = ANY (%(names)s::text[]) DESC, min(n.run_at)) AS place
      FROM next n
     GROUP BY n.queue
)
SELECT CASE WHEN f.place <= %(queues)s::integer + cardinality(%(names)s::text[]) THEN f.queue END AS queue, sum(f.jobs)::bigint AS jobs,
       (SELECT count(*) FROM next) >= %(most)s::bigint AS capped,
       greatest(0, extract(epoch FROM clock_timestamp() - min(f.first)))::double precision AS oldest
  FROM found f
 GROUP BY 1
