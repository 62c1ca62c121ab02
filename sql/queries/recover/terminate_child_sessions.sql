-- End the database sessions of a dead child process: its own, that of its jobs' transactions, and the one that
-- works on records of an application's table, which is found by its name. Returns how many still exist (then ask
-- again), and how many of those this role must not end. Run by the supervisor before it releases what the child
-- had claimed. The start time distinguishes a session from a later one with the same process id. Other databases
-- of the server, and other schemas of this one, have children with the same number.
SELECT count(*) FILTER (WHERE s.fate <> 'gone') AS alive, count(*) FILTER (WHERE s.fate = 'refused') AS refused
  FROM jobherd.children c
       CROSS JOIN LATERAL (
           SELECT c.backend_pid AS pid, c.backend_started AS started
           UNION
           SELECT c.transaction_pid, c.transaction_started WHERE c.transaction_pid IS NOT NULL
           UNION
           SELECT a.pid, a.backend_start FROM pg_stat_activity a
            WHERE a.application_name = 'jobherd:table:' || left('jobherd.', 25) || c.id AND a.datname = current_database()
       ) AS p
       CROSS JOIN LATERAL (SELECT jobherd.end_session(p.pid, p.started) AS fate) AS s
 WHERE c.supervisor = %(supervisor)s AND c.incarnation = %(incarnation)s
