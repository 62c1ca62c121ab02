-- Show the server and this session: role, clock, age of the oldest transaction id (of all databases: any of them
-- stops all), how full the notification queue is, and the schemas of the search path in which every role may
-- create a function. Of two functions with one name, PostgreSQL calls the one whose types fit our rows exactly,
-- with our rights.
SELECT pg_is_in_recovery() AS standby, pg_backend_pid() AS backend, clock_timestamp() AS now,
       oldest.age AS xid_age, oldest.name AS xid_of,
       pg_notification_queue_usage() AS notifications,
       ARRAY(SELECT quote_ident(n.nspname) FROM pg_namespace n
              WHERE n.nspname = ANY (current_schemas(false))
                AND EXISTS (SELECT FROM aclexplode(n.nspacl) AS a WHERE a.grantee = 0 AND a.privilege_type = 'CREATE')
              ORDER BY 1) AS open_schemas,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions,
       (SELECT bool_or(rolsuper OR rolname = 'pg_read_all_stats')
          FROM pg_roles WHERE pg_has_role(current_user, oid, 'USAGE')) AS sees_all
  FROM (SELECT age(datfrozenxid), datname FROM pg_database ORDER BY 1 DESC LIMIT 1) AS oldest (age, name)
