-- Store what the loaded handlers declare, where it differs. Run by each child process once it has loaded them.
-- Equal rows are only read: PostgreSQL locks a row to update it, and a process that starts would wait for an
-- open transaction that has written to it.
INSERT INTO jobherd.kinds AS k (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact, partition_by, signature)
SELECT n.name, n.queue, n.priority, n.a, n.c, n.kc, n.kf, n.redact::jsonb, n.partition_by::text[], n.signature
  FROM unnest(%(names)s::text[], %(queues)s::text[], %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(max_crashes)s::smallint[],
              %(keep_completed)s::integer[], %(keep_failed)s::integer[], %(redacts)s::text[], %(partitions)s::text[],
              %(signatures)s::text[])
       AS n (name, queue, priority, a, c, kc, kf, redact, partition_by, signature)
 WHERE NOT EXISTS (SELECT FROM jobherd.kinds o
                    WHERE o.name = n.name
                      AND (o.queue, o.priority, o.max_attempts, o.max_crashes, o.keep_completed, o.keep_failed, o.redact,
                           o.partition_by, o.signature)
                          IS NOT DISTINCT FROM (n.queue, n.priority, n.a, n.c, n.kc, n.kf, n.redact::jsonb, n.partition_by::text[],
                                                n.signature))
 ORDER BY n.name  -- one lock order: child processes that start together would deadlock otherwise
ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, max_crashes = excluded.max_crashes,
       keep_completed = excluded.keep_completed, keep_failed = excluded.keep_failed, redact = excluded.redact, partition_by = excluded.partition_by,
       signature = excluded.signature, seen_at = clock_timestamp()
 WHERE (k.queue, k.priority, k.max_attempts, k.max_crashes, k.keep_completed, k.keep_failed, k.redact, k.partition_by, k.signature)
       IS DISTINCT FROM (excluded.queue, excluded.priority, excluded.max_attempts, excluded.max_crashes, excluded.keep_completed,
                         excluded.keep_failed, excluded.redact, excluded.partition_by, excluded.signature)
