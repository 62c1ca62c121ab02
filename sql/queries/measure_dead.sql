-- How many rows of the tables that turn over have died and are still in the way, and how many live, as far as the server has counted.
-- Run by keepers, and by workers in doubt (workers/claim/scan_start.py).
SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live
  FROM pg_class c
 WHERE c.oid IN ('jobherd.ready'::regclass, 'jobherd.scheduled'::regclass, 'jobherd.running'::regclass)
