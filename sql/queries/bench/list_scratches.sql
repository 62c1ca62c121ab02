-- List the scratch schemas of measurements in this database, including those that a killed measurement left
-- behind. Run by `jobherd bench`.
SELECT nspname::text AS name FROM pg_catalog.pg_namespace WHERE starts_with(nspname::text, 'jobherd_bench_') AND pg_catalog.pg_has_role(nspowner, 'USAGE')
