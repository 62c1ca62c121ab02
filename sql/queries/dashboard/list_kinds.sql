-- List the kinds that are declared or had jobs that finished in the last %(seconds)s seconds, with the resources
-- they used. Reads only the rollup. At most %(most)s, the most expensive first. The row without a kind is for
-- all together.
WITH sums AS (
    SELECT r.kind, sum(r.completed)::bigint AS completed, sum(r.failed)::bigint AS failed, sum(r.cancelled)::bigint AS cancelled,
           sum(r.expired)::bigint AS expired, sum(r.started)::bigint AS started, sum(r.ran) AS ran, sum(r.cpu) AS cpu, max(r.memory) AS memory
      FROM jobherd.rollup r
     WHERE r.at >= now() - make_interval(secs => %(seconds)s::integer)
     GROUP BY GROUPING SETS ((r.kind), ())
), counted AS MATERIALIZED (
    SELECT t.kind, t.bucket, sum(t.ran)::double precision AS jobs
      FROM jobherd.rollup_times t
     WHERE t.at >= now() - make_interval(secs => %(seconds)s::integer) AND t.ran > 0
     GROUP BY t.kind, t.bucket
), buckets AS (
    SELECT kind, bucket, jobs FROM counted
    UNION ALL
    SELECT NULL, bucket, sum(jobs) FROM counted GROUP BY bucket
), ranked AS (
    SELECT kind, bucket, jobs, sum(jobs) OVER (PARTITION BY kind ORDER BY bucket) AS upto, sum(jobs) OVER (PARTITION BY kind) AS total FROM buckets
), times AS (
    SELECT kind, min(jobherd.rollup_quantile(0.5, bucket, jobs, upto, total)) AS p50,
           min(jobherd.rollup_quantile(0.95, bucket, jobs, upto, total)) AS p95,
           min(jobherd.rollup_quantile(0.99, bucket, jobs, upto, total)) AS p99
      FROM ranked
     GROUP BY kind
), named AS (
    SELECT kind FROM sums UNION SELECT name FROM jobherd.kinds UNION SELECT NULL
)
SELECT n.kind, k.queue, k.name IS NOT NULL AS declared, coalesce(s.completed, 0) AS completed, coalesce(s.failed, 0) AS failed,
       coalesce(s.cancelled, 0) AS cancelled, coalesce(s.expired, 0) AS expired, coalesce(s.started, 0) AS started, coalesce(s.ran, 0) AS ran,
       coalesce(s.cpu, 0) AS cpu, s.memory, t.p50, t.p95, t.p99
  FROM named n
  LEFT JOIN sums s ON s.kind IS NOT DISTINCT FROM n.kind
  LEFT JOIN times t ON t.kind IS NOT DISTINCT FROM n.kind
  LEFT JOIN jobherd.kinds k ON k.name = n.kind
 ORDER BY n.kind IS NOT NULL, s.cpu DESC NULLS LAST, n.kind
 LIMIT %(most)s::integer
