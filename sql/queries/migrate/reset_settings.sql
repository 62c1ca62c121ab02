-- Until the transaction ends, let no setting of role or database change what a migration means. Extra checks of
-- PL/pgSQL would reject functions, a function in another schema would be bound into constraints and views, and
-- literals would be read in another way. Run by `migrate`.
SELECT set_config('plpgsql.extra_errors', 'none', true), set_config('plpgsql.extra_warnings', 'none', true),
       set_config('search_path', 'pg_catalog, pg_temp', true), set_config('standard_conforming_strings', 'on', true),
       set_config('transform_null_equals', 'off', true), set_config('row_security', 'on', true),
       set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'postgres', true), set_config('TimeZone', 'UTC', true)
