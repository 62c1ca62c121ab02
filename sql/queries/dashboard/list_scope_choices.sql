-- List the queues and hosts of the jobs that finished in the last %(seconds)s seconds, for the selection field of
-- the charts. At most %(most)s, the busiest ones. Reads only the rollup.
SELECT r.scope, r.name
  FROM jobherd.rollup_scopes r
 WHERE r.at >= now() - make_interval(secs => %(seconds)s::integer)
 GROUP BY r.scope, r.name
 ORDER BY sum(r.completed + r.failed + r.cancelled + r.expired) DESC, r.scope, r.name
 LIMIT %(most)s::integer
