-- Sum the jobs that finished in each %(point)s seconds of the last %(seconds)s, and how long they waited and
-- ran, and the failed attempts after which a job runs again (`retried`), of one kind or (%(kind)s is null) of all. Reads only the rollup. Every slice has a row, including one in
-- which no job finished. The row without a time is for the whole span.
--
-- now() and not clock_timestamp(): the planner knows its value, and finds the rows of an hour by index.
WITH span AS MATERIALIZED (
    SELECT make_interval(secs => %(point)s::integer) AS point, date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') AS last,
           date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') - make_interval(secs => %(seconds)s::integer - %(point)s::integer) AS since
), rates AS (
    SELECT b.at, sum(b.completed)::bigint AS completed, sum(b.failed)::bigint AS failed, sum(b.cancelled)::bigint AS cancelled,
           sum(b.expired)::bigint AS expired, sum(b.retried)::bigint AS retried, sum(b.started)::bigint AS started, sum(b.ran) AS ran, sum(b.cpu) AS cpu, max(b.memory) AS memory
      FROM (SELECT date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00') AS at, r.completed, r.failed, r.cancelled, r.expired, r.retried, r.started, r.ran, r.cpu, r.memory
              FROM jobherd.rollup r
             WHERE r.at >= date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') - make_interval(secs => %(seconds)s::integer - %(point)s::integer)
               AND (%(kind)s::text IS NULL OR r.kind = %(kind)s::text)) AS b
     GROUP BY GROUPING SETS ((b.at), ())
), buckets AS MATERIALIZED (
    SELECT b.at, b.bucket, sum(b.ran)::double precision AS ran, sum(b.waited)::double precision AS waited
      FROM (SELECT date_bin(make_interval(secs => %(point)s::integer), t.at, '2000-01-01 00:00:00+00') AS at, t.bucket, t.ran, t.waited
              FROM jobherd.rollup_times t
             WHERE t.at >= date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') - make_interval(secs => %(seconds)s::integer - %(point)s::integer)
               AND (%(kind)s::text IS NULL OR t.kind = %(kind)s::text)) AS b
     GROUP BY b.at, b.bucket
), whole AS MATERIALIZED (  -- of some thousand buckets, and not of each row of the rollup once more
    SELECT b.bucket, sum(b.ran) AS ran, sum(b.waited) AS waited FROM buckets b GROUP BY b.bucket
), told AS (
    SELECT at, bucket, true AS ran, ran AS jobs FROM buckets WHERE ran > 0
    UNION ALL
    SELECT at, bucket, false, waited FROM buckets WHERE waited > 0
    UNION ALL
    SELECT NULL, bucket, true, ran FROM whole WHERE ran > 0
    UNION ALL
    SELECT NULL, bucket, false, waited FROM whole WHERE waited > 0
), ranked AS (
    SELECT at, ran, bucket, jobs, sum(jobs) OVER (PARTITION BY at, ran ORDER BY bucket) AS upto, sum(jobs) OVER (PARTITION BY at, ran) AS total FROM told
), times AS (
    SELECT at, min(jobherd.rollup_quantile(0.5, bucket, jobs, upto, total)) FILTER (WHERE ran) AS ran_p50,
           min(jobherd.rollup_quantile(0.95, bucket, jobs, upto, total)) FILTER (WHERE ran) AS ran_p95,
           min(jobherd.rollup_quantile(0.5, bucket, jobs, upto, total)) FILTER (WHERE NOT ran) AS waited_p50,
           min(jobherd.rollup_quantile(0.95, bucket, jobs, upto, total)) FILTER (WHERE NOT ran) AS waited_p95
      FROM ranked
     GROUP BY at
)
SELECT p.at, coalesce(r.completed, 0) AS completed, coalesce(r.failed, 0) AS failed, coalesce(r.cancelled, 0) AS cancelled,
       coalesce(r.expired, 0) AS expired, coalesce(r.retried, 0) AS retried, coalesce(r.started, 0) AS started, coalesce(r.ran, 0) AS ran, coalesce(r.cpu, 0) AS cpu, r.memory,
       t.ran_p50, t.ran_p95, t.waited_p50, t.waited_p95
  FROM (SELECT generate_series(s.since, s.last, s.point) AS at FROM span s UNION ALL SELECT NULL) AS p
  -- Not IS NOT DISTINCT FROM, which compares each with each.
  LEFT JOIN rates r ON coalesce(r.at, 'infinity') = coalesce(p.at, 'infinity')
  LEFT JOIN times t ON coalesce(t.at, 'infinity') = coalesce(p.at, 'infinity')
 ORDER BY p.at
