-- End what is left of the session in which a child works records of an application's table, which goes by its name, and say whether it is still
-- there (then ask again). Run by the child on its own session when the other one is lost: the server may not know that yet, and holds the record.
SELECT count(*) FILTER (WHERE jobherd.end_session(pid, backend_start) <> 'gone') AS alive
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'jobherd:table:' || left('jobherd.', 25) || %(child)s::bigint
