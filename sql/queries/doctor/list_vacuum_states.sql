-- Show the vacuum state of the tables with a high turnover: rows, dead rows, size with indexes, and when they
-- were last vacuumed.
SELECT s.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, pg_total_relation_size(s.relid) AS bytes,
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::double precision AS vacuumed_ago,
       age(c.relfrozenxid)::bigint AS xid_age
  FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
 WHERE s.schemaname = %(schema)s AND s.relname IN ('ready', 'scheduled', 'running', 'progress', 'supervisors')
 ORDER BY s.relname
