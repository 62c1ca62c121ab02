-- Remove the dead rows that the periodic checks and users' queries walk past. Run by maintenance processes, as
-- vacuum_ready.sql.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.running
