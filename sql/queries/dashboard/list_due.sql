-- List the %(most)s jobs that are due next.
SELECT id, kind, queue, run_at, attempts, last_error ->> 'code' AS code FROM jobherd.scheduled ORDER BY run_at, id LIMIT %(most)s::integer
