-- Announce that a client waits for these jobs, by locks of this session (see schema/05_wake.sql). Run by the client
-- after it listens and before it queries the jobs. Waits only for the check of a settlement, which takes
-- microseconds.
SELECT count(pg_advisory_lock_shared(1785684585, key))
  FROM (SELECT generate_series(1, 4) AS key UNION SELECT 64 + (id & 63)::integer FROM unnest(%(ids)s::bigint[]) AS id) AS keys
