-- List the declared kinds for the selection field of the job list, with queue and most attempts. At most 1,000.
SELECT k.name, k.queue, k.max_attempts FROM jobherd.kinds k ORDER BY k.name LIMIT 1000
