-- Until the transaction ends, wait no longer than so many milliseconds for a lock. Run by the doctor, which
-- searches for what blocks jobs and must not be blocked by it, by migrations, because every other session would
-- wait behind theirs, and by the gateway: its claims and results would wait behind its declarations of kinds, and all
-- its producers behind one that waits for a key.
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
