-- List what holds back vacuum in this database, by the age in transactions of what it holds: open transactions,
-- prepared transactions, replication slots, and standbys with feedback. Seconds are since the transaction began;
-- null for a slot and a standby.
SELECT 'transaction' AS what, coalesce(nullif(application_name, ''), usename::text, '?') AS name, pid::text AS handle, state,
       extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds,
       age(coalesce(backend_xmin, backend_xid))::bigint AS age, NULL::bigint AS bytes, true AS active
  FROM pg_stat_activity
 WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND (datname = current_database() OR backend_xmin IS NOT NULL)
UNION ALL
SELECT 'prepared', owner::text, gid, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::double precision, age(transaction)::bigint,
       NULL, false
  FROM pg_prepared_xacts
UNION ALL
SELECT 'slot', slot_name::text, slot_name::text, slot_type, NULL, greatest(age(xmin), age(catalog_xmin))::bigint,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END, active
  FROM pg_replication_slots
UNION ALL
SELECT 'standby', coalesce(nullif(application_name, ''), usename::text, '?'), pid::text, state, NULL, age(backend_xmin)::bigint, NULL, true
  FROM pg_stat_replication
 WHERE backend_xmin IS NOT NULL
ORDER BY seconds DESC NULLS LAST
