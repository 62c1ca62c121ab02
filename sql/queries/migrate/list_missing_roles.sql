-- List the roles of grant_roles.sql that this server does not have.
SELECT name FROM unnest('{jobherd_enqueue,jobherd_work,jobherd_read,jobherd_admin}'::text[]) AS name WHERE to_regrole(name) IS NULL ORDER BY name
