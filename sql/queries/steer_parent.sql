-- Bound what the parent's session may wait for: it holds the lease, and a statement that waits for a lock must not outlast it. Whatever
-- role and database say of sessions that are idle, of isolation, of row security, of where functions are found, or of how numbers and lists are written, is not
-- for it. As to functions, see pin_search_path.sql. What follows a child's death is prepared: without the
-- generic plan its first five uses would be planned anew, while somebody's job waits.
SELECT set_config('statement_timeout', %(patience)s, false), set_config('lock_timeout', %(locks)s, false),
       set_config('idle_in_transaction_session_timeout', %(patience)s, false), set_config('idle_session_timeout', '0', false),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', false) END,
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('array_nulls', 'on', false), set_config('extra_float_digits', '1', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('row_security', 'on', false),
       set_config('search_path', CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                                                        JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                                                       WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                                                         AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
                                      THEN 'pg_catalog, pg_temp'
                                      ELSE (SELECT s.reset_val FROM pg_catalog.pg_settings s WHERE s.name = 'search_path') END, false)
