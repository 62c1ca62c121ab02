-- List the %(partitions)s partitions with the most jobs, with the age of the oldest that was read. Run on users' request,
-- if a queue has a rule for its partitions. No more than %(most)s waiting jobs are read, so a partition may have more.
WITH seen AS MATERIALIZED (
    SELECT r.queue, (r.extras).partition AS partition, 1 AS ready, 0 AS running, r.run_at
      FROM (SELECT queue, extras, run_at FROM jobherd.waiting LIMIT %(most)s::bigint) AS r
    UNION ALL
    SELECT r.queue, (j.extras).partition, 0, 1, NULL FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
)
SELECT s.queue, s.partition, sum(s.ready)::bigint AS ready, sum(s.running)::bigint AS running,
       greatest(0, extract(epoch FROM clock_timestamp() - min(s.run_at)))::double precision AS oldest
  FROM seen s
 WHERE s.partition IS NOT NULL
 GROUP BY s.queue, s.partition
 ORDER BY count(*) DESC, min(s.run_at), s.queue, s.partition
 LIMIT %(partitions)s::integer
