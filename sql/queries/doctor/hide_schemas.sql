-- Until the transaction ends, have every name written with its schema: what is in the search path is written without it.
SELECT set_config('search_path', 'pg_catalog', true)
