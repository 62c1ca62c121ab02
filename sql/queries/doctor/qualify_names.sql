-- Make PostgreSQL write every name with its schema, until the transaction ends: it leaves out the schemas of the
-- search path.
SELECT set_config('search_path', 'pg_catalog', true)
