-- Let go of the sleep keys: producers need not notify for this supervisor's sake. Run by the parent once all its workers are busy; its
-- session holds no other advisory locks, and may hold these twice if it was refused some of them before.
SELECT pg_advisory_unlock_all(), set_config('jobherd.sleeps', 'no', false)
