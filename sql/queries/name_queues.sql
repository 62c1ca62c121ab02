-- Queues that a kind declares or that somebody paused, and whether they are paused. Run by a web child for the metrics: a queue
-- that has run empty is shown as 0 and does not vanish.
SELECT known.queue, EXISTS (SELECT FROM jobherd.queues q WHERE q.name = known.queue AND q.paused_at IS NOT NULL) AS paused
  FROM (SELECT k.queue FROM jobherd.kinds k UNION SELECT q.name FROM jobherd.queues q) AS known
 ORDER BY paused DESC, known.queue
 LIMIT %(queues)s::integer
