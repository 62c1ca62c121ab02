-- List the sessions that hold an advisory lock of Jobherd, which every login may take, and for at least how many
-- seconds: since then the transaction is open or the session is idle (null for a role that may not see it). The
-- shared locks that supervisors and waiting clients hold during their whole life are left out. See
-- schema/05_wake.sql.
SELECT l.pid, coalesce(a.usename::text, '?') AS role, coalesce(nullif(a.application_name, ''), 'no name') AS name,
       coalesce(a.state, '?') AS state,
       CASE WHEN bool_or(l.classid = 1785684584) THEN 'wake'
            WHEN bool_or(l.classid = 1785684585) THEN 'wait' ELSE 'keep' END AS what,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change))::double precision AS seconds
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.pid IS NOT NULL
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND CASE WHEN l.objsubid = 2 THEN l.classid IN (1785684584, 1785684585)
                                     AND (l.mode = 'ExclusiveLock' OR (l.classid = 1785684584 AND l.objid = 0))
            ELSE (l.classid::bigint << 32) | l.objid::bigint
                 IN (hashtext('jobherd.keep_partitions'), hashtext('jobherd.count_past'), hashtext('jobherd.migrations')) END
 GROUP BY l.pid, a.application_name, a.usename, a.state, a.xact_start, a.state_change
 ORDER BY seconds DESC NULLS LAST
