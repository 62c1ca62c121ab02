-- Make a session, or only this transaction (%(local)s), find functions and operators in pg_catalog only.
-- Otherwise PostgreSQL would call a function in a schema of the role's search path instead of its own if that
-- one fits the types of our rows better. All our statements name the schema of our tables. If one of our tables
-- has a trigger of the application, its function may use names of the application: then the search path stays.
-- Run by commands, and by each child process whose handlers have no before_claim hook, because the conditions of
-- a hook may use such names.
SELECT set_config('search_path', 'pg_catalog, pg_temp', %(local)s::boolean)
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                     JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                    WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                      AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
