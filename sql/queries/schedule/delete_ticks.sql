-- Delete up to %(most)s instants that are 30 days old. Run by maintenance processes, repeatedly while that many
-- are found.
DELETE FROM jobherd.ticks
 WHERE (schedule, at) IN (SELECT t.schedule, t.at FROM jobherd.ticks t
                           WHERE t.noted_at < clock_timestamp() - interval '30 days'
                           ORDER BY t.noted_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED)
