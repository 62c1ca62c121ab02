-- List the known kinds for a selection field, with the most attempts that each allows. Run for each list of
-- jobs.
SELECT k.name, k.queue, k.max_attempts FROM jobherd.kinds k ORDER BY k.name LIMIT 1000
