-- Clear the dead rows away that whoever looks for due jobs walks past. Run by keepers, as vacuum_ready.sql.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.scheduled
