-- Which backend serves us: another than the connection was told of means that a pooler stands between.
SELECT pg_backend_pid() AS backend
