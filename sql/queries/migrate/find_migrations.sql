-- Return whether the schema exists, and whether row-level security hides the applied migrations from this role.
SELECT to_regclass('jobherd.migrations') IS NOT NULL AS present, coalesce(row_security_active(to_regclass('jobherd.migrations')), false) AS hidden
