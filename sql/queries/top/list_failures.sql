-- List recent failures, latest first, among the newest jobs that did not complete, which have an index of their
-- own. Run by `jobherd top`.
SELECT t.id, t.kind, t.queue, t.attempts, t.error_code, t.error,
       extract(epoch FROM clock_timestamp() - t.finished_at)::double precision AS ago
  FROM (SELECT h.id, h.kind, h.queue, h.state, h.attempts, h.error_code, left(h.error, 300) AS error, h.finished_at
          FROM jobherd.history h
         WHERE h.state <> 'completed'
         ORDER BY h.id DESC
         LIMIT 500) AS t
 WHERE t.state = 'failed'
 ORDER BY t.finished_at DESC
 LIMIT %(most)s::integer
