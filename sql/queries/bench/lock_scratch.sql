-- Mark the scratch schema of a measurement as used by this session; true if no other session uses it. The lock
-- is held until the session ends.
SELECT pg_try_advisory_lock(hashtextextended('scratch schema ' || %(name)s::text, 0)) AS locked
