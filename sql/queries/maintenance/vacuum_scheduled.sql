-- Remove the dead rows that a search for due jobs walks past. Run by maintenance processes, as vacuum_ready.sql.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.scheduled
