-- Until the transaction ends, wait no longer than so many milliseconds for a lock. Run by the doctor, which
-- searches for what blocks jobs and must not be blocked by it, and by migrations, because every other session
-- would wait behind theirs.
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
