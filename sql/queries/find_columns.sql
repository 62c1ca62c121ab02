-- The columns of an application's table by name: their types, and whether one by itself is unique. No rows: there is no such table.
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
  FROM pg_attribute a
 WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
