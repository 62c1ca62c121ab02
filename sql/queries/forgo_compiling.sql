-- Have no statement of this session compiled, and tell which backend serves us. Run by people's commands, and by clients in sessions of their own: planned as if the past were one of millions, a look at one job was
-- compiled for 0.3 s and then ran for 1 ms. Behind a pooler, where another backend serves us than the one that was promised (%(promised)s), only
-- this statement is meant: what is set for a session would stay with that backend, for a stranger. And have times written in the one way that the
-- driver reads: those of a role or a database with a style of its own, like German, it refused to read at all.
-- PostgreSQL must not refuse statements for the policies of tables.
SELECT pg_backend_pid() AS backend, set_config('jit', 'off', other), set_config('DateStyle', 'ISO', other), set_config('row_security', 'on', other)
  FROM (SELECT pg_backend_pid() <> %(promised)s::integer) AS served (other)
