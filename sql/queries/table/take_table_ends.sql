-- Take the records whose process has died, to reset them in the same transaction. Run by a resetter, for the
-- stores that it serves.
DELETE FROM jobherd.table_ends
 WHERE id IN (SELECT id FROM jobherd.table_ends WHERE kind = ANY (%(kinds)s::text[]) ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING kind, record, token, outcome, crashed, delay, error, log, ran, extract(epoch FROM at)::double precision
