-- Remove the dead rows that every claim walks past: the server's own vacuum comes once a minute. Run by
-- maintenance processes. It does not wait for a session that holds a conflicting lock. It does not truncate the
-- table, because that would lock out the claims. It cleans the indexes however few rows are dead.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.ready
