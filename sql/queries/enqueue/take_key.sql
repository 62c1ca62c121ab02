-- Take an idempotency key, or find what was enqueued under it. Run by a gateway in front of the jobs of a request, in
-- the same transaction. A request with the same key that is not committed yet is waited for.
-- Parameters: principal (the authenticated client), key, digest (of the jobs).
-- Columns: taken. One row if the key is new or 24 h old, else none: see find_key.sql.
INSERT INTO jobherd.enqueue_keys AS k (principal, key, digest)
VALUES (%(principal)s::text, %(key)s::text, %(digest)s::bytea)
    ON CONFLICT (principal, key) DO UPDATE
   SET digest = excluded.digest, ids = '{}', created_at = excluded.created_at
 WHERE k.created_at < clock_timestamp() - interval '24 hours'
RETURNING true AS taken
