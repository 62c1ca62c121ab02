-- Tie a measurement to the index plans, and to so many milliseconds: one that reads a whole backlog would weigh on the jobs. Run by a web child and
-- by `jobherd top`. Times are written in the one way that the driver reads. For the transaction alone: behind a pooler the next one on this
-- backend is a stranger's.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('DateStyle', 'ISO', true),
       set_config('row_security', 'on', true),
       CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                             JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                            WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                              AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
            THEN set_config('search_path', 'pg_catalog, pg_temp', true) END
