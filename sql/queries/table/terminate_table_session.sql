-- End what is left of the session in which a worker processes records of an application's table, and return
-- whether it still exists (then ask again). The session is found by its application name. Run by the worker on
-- its own session when the other one is lost: the server may not have noticed that yet, and still hold the
-- record.
SELECT count(*) FILTER (WHERE jobherd.end_session(pid, backend_start) <> 'gone') AS alive
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'jobherd:table:' || left('jobherd.', 25) || %(child)s::bigint
