-- Limit each statement of this transaction to that many milliseconds, and disable JIT compilation: planned as if
-- the history had millions of rows, a query for one job took 0.3 s. Parallel workers are disabled: they would take
-- processors from the jobs, and to start them took longer than to sum the rollup. Times are written in the style that the
-- driver can parse, whatever the style of role or database. Run by read-only views: a dashboard must not slow
-- down the jobs. About functions, see pin_search_path.sql. A transaction that only reads (%(reads)s) fires no trigger: to
-- look for them would cost more than most statements. For the transaction only: behind a pooler the backend
-- serves another client next.
SELECT set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('jit', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true), set_config('DateStyle', 'ISO', true),
       set_config('row_security', 'on', true),
       CASE WHEN %(reads)s::boolean OR NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                             JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                            WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                              AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
            THEN set_config('search_path', 'pg_catalog, pg_temp', true) END
