-- Limit what the supervisor's session may wait for: it holds the lease, and a statement that waits for a lock
-- must not outlast the lease. The settings of role and database for idle sessions, isolation, row security, the
-- search path, and the format of numbers and lists do not apply to it. About functions, see pin_search_path.sql.
-- The statements that follow a child's death are prepared: without the generic plan, PostgreSQL would plan each
-- of their first five uses again while jobs wait.
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
