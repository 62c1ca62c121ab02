-- List limits, rates and turns that cannot have the meant effect: of a queue or kind that nothing names, for partitions of a
-- queue whose jobs have none, and with a burst so small that workers cannot reach the rate. A new queue may be named only
-- by jobs that are still to come.
SELECT r.scope, r.name, r.unknown, r.undivided, r.rate, r.burst, r.needed
  FROM (SELECT g.scope, g.name, jobherd.show_rate(g) AS rate, g.burst, jobherd.default_burst(g.rate, g.per) AS needed,
               CASE g.scope
               WHEN 'kind' THEN NOT EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = g.name)
                                AND NOT EXISTS (SELECT FROM jobherd.parked p WHERE p.kind = g.name)
               ELSE NOT EXISTS (SELECT FROM jobherd.kinds k WHERE k.queue = g.name)
                    AND NOT EXISTS (SELECT FROM jobherd.waiting w WHERE w.queue = g.name)
                    AND NOT EXISTS (SELECT FROM jobherd.running x WHERE x.queue = g.name)
                    AND NOT EXISTS (SELECT FROM jobherd.scheduled s WHERE s.queue = g.name)
                    AND NOT EXISTS (SELECT FROM jobherd.supervisors s WHERE s.facts -> 'queues' ? g.name) END AS unknown,
               num_nonnulls(g.turns, g.each_running) > 0
               AND EXISTS (SELECT FROM jobherd.ready w WHERE w.queue = g.name)
               AND NOT EXISTS (SELECT FROM jobherd.ready w WHERE w.queue = g.name AND w.lane > '') AS undivided
          FROM jobherd.gates g
         WHERE num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0) AS r
 WHERE r.unknown OR r.undivided OR r.burst < r.needed
 ORDER BY r.scope, r.name
 LIMIT %(most)s::integer
