-- Find what was enqueued under an idempotency key. Run by a gateway if take_key.sql returned no row.
-- Parameters: principal, key. Columns: digest, ids (as in store_key.sql). No row: maintenance has deleted it meanwhile.
SELECT digest, ids FROM jobherd.enqueue_keys WHERE principal = %(principal)s::text AND key = %(key)s::text
