-- Return whether the table of applied migrations exists, and whether row-level security hides its rows from this
-- role.
SELECT to_regclass('jobherd.migrations') IS NOT NULL AS present, coalesce(row_security_active(to_regclass('jobherd.migrations')), false) AS hidden
