-- The server and this session: role, clock, age of the oldest transaction id, and how full the queue of notifications is.
SELECT pg_is_in_recovery() AS standby, pg_backend_pid() AS backend, clock_timestamp() AS now,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS xid_age,
       pg_notification_queue_usage() AS notifications,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions,
       (SELECT bool_or(rolsuper OR rolname = 'pg_read_all_stats')
          FROM pg_roles WHERE pg_has_role(current_user, oid, 'USAGE')) AS sees_all
