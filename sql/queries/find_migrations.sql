-- Whether the schema is there at all.
SELECT to_regclass('jobherd.migrations') IS NOT NULL AS present
