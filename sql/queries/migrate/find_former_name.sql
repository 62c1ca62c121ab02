-- Return the name that the schema %(schema)s had before it was renamed, if its functions still call the old one;
-- else no row.
WITH ours AS (
    SELECT p.prosrc FROM pg_catalog.pg_proc p WHERE p.pronamespace = to_regnamespace(%(schema)s)
)
SELECT (regexp_match(o.prosrc, '\m([a-z_][a-z0-9_]*)\.ready\M'))[1] AS former
  FROM ours o
 WHERE o.prosrc LIKE '%%.ready%%' AND NOT EXISTS (SELECT FROM ours n WHERE strpos(n.prosrc, %(schema)s || '.ready') > 0)
 GROUP BY 1
 ORDER BY count(*) DESC
 LIMIT 1
