-- Sum the jobs of a queue or host (%(scope)s, %(name)s) that finished in each %(point)s seconds of the last
-- %(seconds)s, and the average seconds that they waited and ran. Reads only the rollup. Every slice has a row,
-- including one in which no job finished. The row without a time is for the whole span.
--
-- now() and not clock_timestamp(): the planner knows its value, and finds the rows of an hour by index.
WITH span AS MATERIALIZED (
    SELECT make_interval(secs => %(point)s::integer) AS point, date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') AS last,
           date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') - make_interval(secs => %(seconds)s::integer - %(point)s::integer) AS since
), sums AS (
    SELECT b.at, sum(b.completed)::bigint AS completed, sum(b.failed)::bigint AS failed, sum(b.cancelled)::bigint AS cancelled,
           sum(b.expired)::bigint AS expired, sum(b.retried)::bigint AS retried, sum(b.started)::bigint AS started,
           sum(b.ran) AS ran, sum(b.waited) AS waited
      FROM (SELECT date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00') AS at, r.completed, r.failed, r.cancelled, r.expired, r.retried, r.started, r.ran, r.waited
              FROM jobherd.rollup_scopes r
             WHERE r.at >= date_bin(make_interval(secs => %(point)s::integer), now(), '2000-01-01 00:00:00+00') - make_interval(secs => %(seconds)s::integer - %(point)s::integer)
               AND r.scope = %(scope)s::text AND r.name = %(name)s::text) AS b
     GROUP BY GROUPING SETS ((b.at), ())
)
SELECT p.at, coalesce(r.completed, 0) AS completed, coalesce(r.failed, 0) AS failed, coalesce(r.cancelled, 0) AS cancelled,
       coalesce(r.expired, 0) AS expired, coalesce(r.retried, 0) AS retried, coalesce(r.started, 0) AS started,
       r.ran / nullif(r.started, 0) AS ran_mean, r.waited / nullif(r.started, 0) AS waited_mean
  FROM (SELECT generate_series(s.since, s.last, s.point) AS at FROM span s UNION ALL SELECT NULL) AS p
  LEFT JOIN sums r ON coalesce(r.at, 'infinity') = coalesce(p.at, 'infinity')
 ORDER BY p.at
