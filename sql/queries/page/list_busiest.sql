-- List the kinds, queues and hosts with the most finished jobs in any %(point)s seconds of the last %(seconds)s, the
-- first %(most)s of each, with that slice and the jobs of the whole span. Reads only the rollup.
WITH slices AS (
    SELECT 'kind' AS scope, r.kind AS name, date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00') AS at,
           sum(r.completed + r.failed + r.cancelled + r.expired)::bigint AS jobs
      FROM jobherd.rollup r
     WHERE r.at >= clock_timestamp() - make_interval(secs => %(seconds)s::integer)
     GROUP BY 2, 3
     UNION ALL
    SELECT r.scope, r.name, date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00'),
           sum(r.completed + r.failed + r.cancelled + r.expired)::bigint
      FROM jobherd.rollup_scopes r
     WHERE r.at >= clock_timestamp() - make_interval(secs => %(seconds)s::integer)
     GROUP BY 1, 2, 3
), peaks AS (
    SELECT DISTINCT ON (s.scope, s.name) s.scope, s.name, s.at, s.jobs,
           (sum(s.jobs) OVER (PARTITION BY s.scope, s.name))::bigint AS whole
      FROM slices s
     ORDER BY s.scope, s.name, s.jobs DESC, s.at
)
SELECT p.scope, p.name, p.at, p.jobs, p.whole
  FROM (SELECT *, row_number() OVER (PARTITION BY scope ORDER BY jobs DESC, name) AS place FROM peaks WHERE jobs > 0) AS p
 WHERE p.place <= %(most)s::integer
 ORDER BY p.scope = 'host', p.scope, p.place
