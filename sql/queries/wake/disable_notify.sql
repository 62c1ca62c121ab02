-- Release the sleep keys (shared advisory locks): producers need not notify this supervisor. Run by the
-- supervisor once all its workers are busy. Its session holds no other advisory locks, and may hold these twice
-- if it failed to get some of them before.
SELECT pg_advisory_unlock_all(), set_config('jobherd.sleeps', 'no', false)
