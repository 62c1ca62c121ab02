-- Count the partitions of each queue that has a rule for them: those with ready jobs, and those whose ready jobs wait for a
-- token. Counting stops at %(most)s partitions of a queue. Run by a web process for the metrics.
SELECT g.name AS queue,
       (WITH RECURSIVE lanes AS (
            (SELECT r.lane FROM jobherd.ready r WHERE r.queue = g.name AND r.lane > '' ORDER BY r.lane, r.priority, r.id LIMIT 1)
            UNION ALL
            SELECT after.lane
              FROM lanes l CROSS JOIN LATERAL (SELECT r.lane FROM jobherd.ready r WHERE r.queue = g.name AND r.lane > l.lane
                                                ORDER BY r.lane, r.priority, r.id LIMIT 1) AS after
        )
        SELECT count(*) FROM (SELECT FROM lanes LIMIT %(most)s::integer) AS found) AS ready,
       (SELECT count(*) FROM (SELECT FROM jobherd.buckets b WHERE b.waiting_in = g.name AND b.opens_at > now() LIMIT %(most)s::integer) AS found)
       AS throttled
  FROM (SELECT name FROM jobherd.gates WHERE num_nonnulls(turns, each_running) > 0 ORDER BY name LIMIT %(queues)s::integer) AS g
 ORDER BY g.name
