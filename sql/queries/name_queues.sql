-- Queues that a kind declares or that somebody paused, and whether they are paused. Run by a web child for the metrics: a queue
-- that has run empty is shown as 0 and does not vanish. Those in %(names)s, which are shown already, come first.
SELECT known.queue, EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = known.queue AND g.paused_at IS NOT NULL) AS paused
  FROM (SELECT k.queue FROM jobherd.kinds k UNION SELECT g.name FROM jobherd.gates g WHERE g.scope = 'queue') AS known
 ORDER BY known.queue = ANY (%(names)s::text[]) DESC, paused DESC, known.queue
 LIMIT %(queues)s::integer
