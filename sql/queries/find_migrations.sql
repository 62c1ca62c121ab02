-- Whether the schema is there at all, and whether row-level security hides what was migrated from this role.
SELECT to_regclass('jobherd.migrations') IS NOT NULL AS present, coalesce(row_security_active(to_regclass('jobherd.migrations')), false) AS hidden
