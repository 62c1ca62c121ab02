-- Say that this session uses the scratch schema of a measurement; true if no other session does. Held until the session ends.
SELECT pg_try_advisory_lock(hashtextextended('scratch schema ' || %(name)s::text, 0)) AS locked
