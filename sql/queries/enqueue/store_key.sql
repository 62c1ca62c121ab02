-- Store the ids of the jobs that were enqueued under an idempotency key. Run by a gateway after the jobs, in the same
-- transaction. Parameters: principal, key, ids (negative: a unique job that
-- was there before).
UPDATE jobherd.enqueue_keys SET ids = %(ids)s::bigint[]
 WHERE principal = %(principal)s::text AND key = %(key)s::text
RETURNING true AS stored
