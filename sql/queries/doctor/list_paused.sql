-- List the pauses, and how many ready jobs wait behind each: for a queue up to %(most)s, for a kind or for
-- everything those among the first %(most)s rows. Run by `jobherd doctor`.
SELECT g.scope, g.name, g.paused_by, g.reason, g.resume_at, extract(epoch FROM clock_timestamp() - g.paused_at)::double precision AS seconds,
       CASE g.scope
           WHEN 'queue' THEN (SELECT count(*) FROM (SELECT FROM jobherd.waiting r WHERE r.queue = g.name LIMIT %(most)s::bigint) AS w)
           ELSE (SELECT count(*) FROM (SELECT r.kind FROM jobherd.waiting r LIMIT %(most)s::bigint) AS w WHERE g.scope = 'all' OR w.kind = g.name)
       END AS waiting
  FROM jobherd.gates g
 WHERE g.paused_at IS NOT NULL
 ORDER BY g.scope, g.name
