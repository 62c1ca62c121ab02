-- Clear the dead rows away that every claim walks past: the server's own vacuum comes once a minute. Run by keepers. Whoever holds a lock in its way is
-- not waited for; the table is not cut short, for that would lock out the claims; its indexes are cleared however little has died.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.ready
