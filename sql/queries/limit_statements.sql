-- No statement of this transaction may run longer than that many milliseconds, and none is compiled: planned as if the past were one of millions,
-- a look at one job took 0.3 s. Times are written in the one way that the driver reads, whatever the style of role or database. Run by those who
-- look on: a page must not weigh on the jobs. As to functions, see pin_search_path.sql. For the transaction alone: behind a pooler the next one on this backend is a stranger's.
SELECT set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('jit', 'off', true), set_config('DateStyle', 'ISO', true),
       set_config('row_security', 'on', true),
       CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                             JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                            WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                              AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
            THEN set_config('search_path', 'pg_catalog, pg_temp', true) END
