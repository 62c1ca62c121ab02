-- The server and this session: role, clock, age of the oldest transaction id (of all databases: any stops all), and how full the queue of notifications is.
SELECT pg_is_in_recovery() AS standby, pg_backend_pid() AS backend, clock_timestamp() AS now,
       oldest.age AS xid_age, oldest.name AS xid_of,
       pg_notification_queue_usage() AS notifications,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions,
       (SELECT bool_or(rolsuper OR rolname = 'pg_read_all_stats')
          FROM pg_roles WHERE pg_has_role(current_user, oid, 'USAGE')) AS sees_all
  FROM (SELECT age(datfrozenxid), datname FROM pg_database ORDER BY 1 DESC LIMIT 1) AS oldest (age, name)
