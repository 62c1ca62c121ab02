-- List the roles of Jobherd: whether each exists, and whether it may use this schema. A restore from a dump
-- without privileges, or on a server without the roles, loses them. Run by doctor.
SELECT r.name, a.oid IS NULL AS missing, COALESCE(has_schema_privilege(a.oid, n.oid, 'USAGE'), false) AS granted
  FROM unnest('{jobherd_enqueue,jobherd_work,jobherd_read,jobherd_admin}'::text[]) WITH ORDINALITY r(name, place)
  JOIN pg_namespace n ON n.nspname = %(schema)s
  LEFT JOIN pg_roles a ON a.rolname = r.name
 ORDER BY r.place
