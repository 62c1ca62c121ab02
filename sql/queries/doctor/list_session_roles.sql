-- List the login roles whose sessions serve this schema, and the role of this session: whether each may call
-- pg_terminate_backend, and which of the others' sessions it must not end. A session is found only by its
-- process id, since its start may be hidden from this role.
WITH logins AS (
    SELECT r.oid, r.rolname, r.rolsuper
      FROM pg_roles r
     WHERE r.rolname = session_user
        OR r.oid IN (SELECT a.usesysid FROM jobherd.children c JOIN pg_stat_activity a ON a.pid IN (c.backend_pid, c.transaction_pid))
)
SELECT l.rolname AS name, quote_ident(l.rolname) AS called,
       has_function_privilege(l.oid, 'pg_catalog.pg_terminate_backend(integer, bigint)', 'EXECUTE') AS may_end,
       ARRAY(SELECT o.rolname FROM logins o
              WHERE NOT l.rolsuper AND NOT pg_has_role(l.oid, o.oid, 'USAGE')
                AND (o.rolsuper OR NOT pg_has_role(l.oid, 'pg_signal_backend', 'USAGE'))
              ORDER BY 1)::text[] AS others
  FROM logins l
 ORDER BY 1
