-- List the sessions that hold a lock on a table of the schema which blocks all writes, and for how many seconds
-- their transaction has been open (null for a role that may not see it).
SELECT l.pid, coalesce(nullif(a.application_name, ''), a.usename::text, '?') AS name, coalesce(a.state, '?') AS state,
       string_agg(DISTINCT c.relname::text, ', ') AS tables,
       extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS seconds
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND l.pid IS NOT NULL AND c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind IN ('r', 'p')
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
 GROUP BY l.pid, a.application_name, a.usename, a.state, a.xact_start
 ORDER BY seconds DESC NULLS LAST
