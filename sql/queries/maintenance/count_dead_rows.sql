-- Return how many dead and live rows the tables with a high turnover hold, by the server's own statistics. Run by
-- maintenance processes, and by workers that decide how to scan (workers/claim/scan_start.py).
SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live
  FROM pg_class c
 WHERE c.oid IN ('jobherd.ready'::regclass, 'jobherd.scheduled'::regclass, 'jobherd.running'::regclass)
