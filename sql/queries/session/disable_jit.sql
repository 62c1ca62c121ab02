-- Disable JIT compilation in this session, and return which backend serves it. Run by commands, and by clients
-- in sessions of their own. Planned as if the history had millions of rows, a query for one job was compiled for
-- 0.3 s and then ran for 1 ms. Behind a pooler, where another backend serves the session than was announced
-- (%(promised)s), the settings apply only to this statement: they would stay with that backend, for another
-- client. Also set the date style that the driver can parse: it failed on the styles of some roles and
-- databases, such as German. PostgreSQL must not reject statements because of the policies of tables.
SELECT pg_backend_pid() AS backend, set_config('jit', 'off', other), set_config('DateStyle', 'ISO', other), set_config('row_security', 'on', other)
  FROM (SELECT pg_backend_pid() <> %(promised)s::integer) AS served (other)
