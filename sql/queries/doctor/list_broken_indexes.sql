-- List the indexes of the schema whose creation never finished.
SELECT i.relname::text AS name, t.relname::text AS of, format('%%I.%%I', t.relnamespace::regnamespace, i.relname) AS called
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
 WHERE t.relnamespace = to_regnamespace(%(schema)s) AND NOT (x.indisvalid AND x.indisready)
 ORDER BY i.relname
