-- List the kinds, queues and hosts with the most finished jobs in any %(point)s seconds of the last %(seconds)s, the
-- first %(most)s of each, with that slice and the jobs of the whole span. Reads only the rollup.
WITH slices AS MATERIALIZED (
    SELECT 'kind' AS scope, r.kind AS name, date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00') AS at,
           sum(r.completed + r.failed + r.cancelled + r.expired)::bigint AS jobs
      FROM jobherd.rollup r
     WHERE r.at >= now() - make_interval(secs => %(seconds)s::integer)
     GROUP BY 2, 3
     UNION ALL
    SELECT r.scope, r.name, date_bin(make_interval(secs => %(point)s::integer), r.at, '2000-01-01 00:00:00+00'),
           sum(r.completed + r.failed + r.cancelled + r.expired)::bigint
      FROM jobherd.rollup_scopes r
     WHERE r.at >= now() - make_interval(secs => %(seconds)s::integer)
     GROUP BY 1, 2, 3
), peaks AS (
    SELECT s.scope, s.name, max(s.jobs) AS jobs, sum(s.jobs)::bigint AS whole FROM slices s GROUP BY s.scope, s.name
), first AS (
    SELECT *, row_number() OVER (PARTITION BY scope ORDER BY jobs DESC, name) AS place FROM peaks WHERE jobs > 0
)
SELECT f.scope, f.name, min(s.at) AS at, f.jobs, f.whole
  FROM first f JOIN slices s ON s.scope = f.scope AND s.name = f.name AND s.jobs = f.jobs
 WHERE f.place <= %(most)s::integer
 GROUP BY f.scope, f.name, f.jobs, f.whole, f.place
 ORDER BY f.scope = 'host', f.scope, f.place
