-- Delete up to %(most)s signals that were sent 30 days ago. Run by maintenance processes.
DELETE FROM jobherd.signals
 WHERE id IN (SELECT p.id FROM (SELECT s.id, s.at FROM jobherd.signals s ORDER BY s.id LIMIT %(most)s) AS p
               WHERE p.at < now() - interval '30 days')
