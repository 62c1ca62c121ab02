-- Measure the flows, the blocked and suspended jobs, the signals and the ends that are not passed on yet. Run by a web process for
-- the metrics. Columns:
-- asked_at, what (suspended: that wait for a signal or for children; signals: sent in the same time as the ended flows, among the newest
-- 10,000; open: of a state; ended: in a state, from %(lag)s seconds before %(since)s until %(lag)s seconds ago; blocked; lag),
-- state, number, seconds
-- (of ended flows together; of lag: since the oldest end). Nothing is counted behind the first %(most)s.
SELECT now() AS asked_at, 'open' AS what, f.state, count(*) AS number, 0::double precision AS seconds
  FROM (SELECT CASE WHEN o.stopping IS NULL THEN 'open' ELSE 'cancelling' END AS state
          FROM jobherd.flows o WHERE o.state = 'open' LIMIT %(most)s::integer) AS f
 GROUP BY f.state
UNION ALL
SELECT now(), 'ended', f.state, count(*), sum(f.seconds)::double precision
  FROM (SELECT o.state, extract(epoch FROM o.ended_at - o.created_at) AS seconds FROM jobherd.flows o
         WHERE o.ended_at > %(since)s::timestamptz - make_interval(secs => %(lag)s::double precision)
           AND o.ended_at <= now() - make_interval(secs => %(lag)s::double precision)
         LIMIT %(most)s::integer) AS f
 GROUP BY f.state
UNION ALL
SELECT now(), 'suspended', w.what, count(*), 0
  FROM (SELECT CASE WHEN flow IS NULL THEN 'signal' ELSE 'children' END AS what FROM jobherd.waits LIMIT %(most)s::integer) AS w
 GROUP BY w.what
UNION ALL
SELECT now(), 'signals', NULL, count(*), 0
  FROM (SELECT at, topic FROM jobherd.signals ORDER BY id DESC LIMIT 10000) AS s
 WHERE s.at > %(since)s::timestamptz - make_interval(secs => %(lag)s::double precision)
   AND s.at <= now() - make_interval(secs => %(lag)s::double precision)
   AND s.topic !~ '^flow/[0-9]+$'  -- the end of child jobs
UNION ALL
SELECT now(), 'blocked', NULL, (SELECT count(*) FROM (SELECT FROM jobherd.blocked LIMIT %(most)s::integer) AS b), 0
UNION ALL
SELECT now(), 'lag', NULL, 0,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(e.at)) FROM (SELECT at FROM jobherd.ends LIMIT %(most)s::integer) AS e), 0)
