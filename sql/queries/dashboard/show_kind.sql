-- Show what is declared about the kind %(kind)s. No row if no handler of that name was ever loaded.
SELECT name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, seen_at, signature FROM jobherd.kinds WHERE name = %(kind)s
