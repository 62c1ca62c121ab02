-- Keep this session open however long it is idle, whatever role and database set. Run by processes that query
-- from time to time. Behind a pooler, where another backend serves the session than was announced
-- (%(promised)s), the setting applies only to this statement: it would stay with that backend, for another
-- client.
SELECT set_config('idle_session_timeout', '0', pg_backend_pid() <> %(promised)s)
