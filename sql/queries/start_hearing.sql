-- Say that somebody sleeps: hold every sleep key, shared, for this session (see migrations/0006). Run by the parent before it relies on
-- notifications. Waits only for a producer's look, which lasts microseconds.
SELECT count(pg_advisory_lock_shared(1785684584, key)), (SELECT set_config('jobherd.sleeps', 'yes', false)) FROM generate_series(1, 16) AS key
