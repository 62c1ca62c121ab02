-- Make a measurement use index plans, and limit it to that many milliseconds: one that reads a whole backlog
-- would slow down the jobs. Run by a web process and by `jobherd top`. Times are written in the style that the
-- driver can parse. For the transaction only: behind a pooler the backend serves another client next.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('DateStyle', 'ISO', true),
       set_config('row_security', 'on', true),
       CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                             JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                            WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                              AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
            THEN set_config('search_path', 'pg_catalog, pg_temp', true) END
