-- How many dead rows the tables with a high turnover still hold, and how many live ones, as far as the server
-- has counted. Run by maintenance processes, and by workers that decide how to scan
-- (workers/claim/scan_start.py).
SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live
  FROM pg_class c
 WHERE c.oid IN ('jobherd.ready'::regclass, 'jobherd.scheduled'::regclass, 'jobherd.running'::regclass)
