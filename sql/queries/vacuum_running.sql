-- Clear the dead rows away that the sweeps and the looks of people walk past. Run by keepers, as vacuum_ready.sql.
VACUUM (SKIP_LOCKED, TRUNCATE false, INDEX_CLEANUP on, PARALLEL 0) jobherd.running
