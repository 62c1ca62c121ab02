-- Seconds until the earliest scheduled job is due; no row if none waits. Run by keepers to set their timer.
SELECT extract(epoch FROM run_at - clock_timestamp())::double precision AS due_in FROM jobherd.scheduled ORDER BY run_at, id LIMIT 1
