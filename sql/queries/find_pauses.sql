-- The kinds that are paused, and * if everything is. Run by a child that works own tables, once for each news and each poll.
SELECT name FROM jobherd.gates WHERE paused_at IS NOT NULL AND scope <> 'queue'
