-- List the kinds that are paused, and * if everything is. Run by a worker that processes application tables,
-- once for each notification and each poll.
SELECT name FROM jobherd.gates WHERE paused_at IS NOT NULL AND scope <> 'queue'
