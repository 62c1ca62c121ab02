-- Announce an idle worker: take every sleep key (advisory lock) in shared mode for this session (see
-- schema/05_wake.sql). Run by the supervisor before it relies on notifications. Waits only for the check of a
-- producer, which takes microseconds.
SELECT count(pg_advisory_lock_shared(1785684584, key)), (SELECT set_config('jobherd.sleeps', 'yes', false)) FROM generate_series(1, 16) AS key
