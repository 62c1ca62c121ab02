-- Delete up to %(most)s idempotency keys that do not count any more: they are 24 h old, as in
-- take_key.sql. Run by maintenance processes. A row that a producer is about to take again is left for the next time.
DELETE FROM jobherd.enqueue_keys
 WHERE (principal, key) IN (SELECT k.principal, k.key FROM jobherd.enqueue_keys k
                             WHERE k.created_at < clock_timestamp() - interval '24 hours'
                             ORDER BY k.created_at LIMIT %(most)s::integer FOR UPDATE SKIP LOCKED)
RETURNING true AS deleted
