-- How many jobs have ever ended and were kept, as the server's own counters say: no row is read. Run by `jobherd top`, which makes a rate of it.
SELECT coalesce(sum(pg_stat_get_tuples_inserted(i.inhrelid)), 0)::bigint AS ended
  FROM pg_inherits i
 WHERE i.inhparent = 'jobherd.history'::regclass
