-- List the queues that a kind declares or that have a pause or limit, and whether they are paused. Run by a web
-- process for the metrics: an empty queue is shown as 0 and does not vanish. The queues in %(names)s, which are
-- already shown, come first.
SELECT known.queue, EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = known.queue AND g.paused_at IS NOT NULL) AS paused
  FROM (SELECT k.queue FROM jobherd.kinds k UNION SELECT g.name FROM jobherd.gates g WHERE g.scope = 'queue') AS known
 ORDER BY known.queue = ANY (%(names)s::text[]) DESC, paused DESC, known.queue
 LIMIT %(queues)s::integer
