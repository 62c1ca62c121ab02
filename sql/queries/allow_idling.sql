-- Have this session live however long nobody asks it, whatever role and database say. Run by those who look now and then. Behind a pooler, where
-- another backend serves us than the one that was promised (%(promised)s), only this statement is meant: it would stay with that backend, for a stranger.
SELECT set_config('idle_session_timeout', '0', pg_backend_pid() <> %(promised)s)
