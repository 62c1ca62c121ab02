-- Return which shard this database is, 0 if it is none: the bounds of its ids (schema/47_shards.sql). Run by a client
-- with shards, once for each database.
SELECT (CASE WHEN s.seqmax < 9000000000000000 THEN s.seqmax / 10000000000000 ELSE 0 END)::integer AS shard
  FROM pg_catalog.pg_sequence AS s WHERE s.seqrelid = 'jobherd.job_ids'::regclass
