-- Say that somebody waits for these jobs, by locks of this session (see migrations/0013). Run by whoever waits, after it listens and before
-- it looks. Waits only for a settlement's look, which lasts microseconds.
SELECT count(pg_advisory_lock_shared(1785684585, key))
  FROM (SELECT generate_series(1, 4) AS key UNION SELECT 64 + (id & 63)::integer FROM unnest(%(ids)s::bigint[]) AS id) AS keys
