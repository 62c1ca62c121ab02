-- Let a session, or this transaction alone (%(local)s), find functions and operators in pg_catalog only. Otherwise one in a schema of the role's
-- search path is called instead of PostgreSQL's if it fits the types of our rows better. All our statements name the schema of our tables. If a
-- table of ours has a trigger of the application's, its function may use names of the application's: then the search path stays. Run by
-- each child process whose handlers have no before_claim hook, whose conditions may use such names, and by people's commands.
SELECT set_config('search_path', 'pg_catalog, pg_temp', %(local)s::boolean)
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                     JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                    WHERE c.relnamespace = to_regnamespace(split_part('jobherd.', '.', 1))
                      AND NOT t.tgisinternal AND p.pronamespace <> c.relnamespace)
