-- List the objects of the schema %(schema)s, each with its definition and the statement that creates it.
-- Partitions are left out because they come and go, except the default partitions.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.reloptions
      FROM pg_class c
     WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind IN ('r', 'p', 'v', 'S')
       AND (NOT c.relispartition OR c.relname LIKE '%%\_default')
)
SELECT 'table' AS what, relname::text AS name, NULL AS of,
       CASE relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' ELSE 'table' END AS definition, NULL AS remedy
  FROM ours
UNION ALL
SELECT 'setting', split_part(o, '=', 1), relname, split_part(o, '=', 2), format('ALTER TABLE %%I.%%I SET (%%s)', %(schema)s, relname, o)
  FROM ours CROSS JOIN unnest(reloptions) AS o
 WHERE relkind IN ('r', 'p')
UNION ALL
SELECT 'column', a.attname, relname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'storage ' || a.attstorage::text, CASE WHEN a.attnotnull THEN 'not null' END),
       concat_ws(' ', format('ALTER TABLE %%I.%%I ADD COLUMN %%I', %(schema)s, relname, a.attname), format_type(a.atttypid, a.atttypmod),
                 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), CASE WHEN a.attnotnull THEN 'NOT NULL' END)
  FROM ours JOIN pg_attribute a ON a.attrelid = ours.oid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'default', a.attname, relname, pg_get_expr(d.adbin, d.adrelid),
       format('ALTER TABLE %%I.%%I ALTER COLUMN %%I SET DEFAULT %%s', %(schema)s, relname, a.attname, pg_get_expr(d.adbin, d.adrelid))
  FROM ours JOIN pg_attrdef d ON d.adrelid = ours.oid JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE relkind IN ('r', 'p')
UNION ALL
SELECT 'constraint', c.conname, relname, pg_get_constraintdef(c.oid),
       format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s', %(schema)s, relname, c.conname, pg_get_constraintdef(c.oid))
  FROM ours JOIN pg_constraint c ON c.conrelid = ours.oid
 WHERE c.contype IN ('c', 'p', 'u', 'f', 'x')
UNION ALL
SELECT 'index', i.relname, ours.relname, pg_get_indexdef(x.indexrelid), pg_get_indexdef(x.indexrelid)
  FROM ours JOIN pg_index x ON x.indrelid = ours.oid JOIN pg_class i ON i.oid = x.indexrelid
 WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.indexrelid AND c.conrelid = x.indrelid)
   AND NOT i.relispartition
UNION ALL
SELECT 'trigger', t.tgname, relname, concat_ws(' ', pg_get_triggerdef(t.oid), 'enabled ' || t.tgenabled::text),
       format('DROP TRIGGER IF EXISTS %%I ON %%I.%%I; %%s', t.tgname, %(schema)s, relname, pg_get_triggerdef(t.oid))
  FROM ours JOIN pg_trigger t ON t.tgrelid = ours.oid
 WHERE NOT t.tgisinternal
UNION ALL
SELECT 'view', relname, NULL, pg_get_viewdef(oid), format('CREATE OR REPLACE VIEW %%I.%%I AS %%s', %(schema)s, relname, pg_get_viewdef(oid))
  FROM ours
 WHERE relkind = 'v'
UNION ALL
SELECT 'function', format('%%s(%%s)', p.proname, pg_get_function_identity_arguments(p.oid)), NULL, pg_get_functiondef(p.oid),
       pg_get_functiondef(p.oid)
  FROM pg_proc p
 WHERE p.pronamespace = to_regnamespace(%(schema)s) AND p.prokind IN ('f', 'p')
ORDER BY 1, 3 NULLS FIRST, 2
