-- Return which backend serves this session: another one than the connection was announced means that a pooler is
-- in between.
SELECT pg_backend_pid() AS backend
