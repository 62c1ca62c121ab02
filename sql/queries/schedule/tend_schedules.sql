-- Start the runs that waited for an earlier one, and end pauses. Return the seconds until a maintenance process must
-- check the schedules again, or null. Run by maintenance processes after each look.
SELECT jobherd.schedules_due_in() AS due_in FROM (SELECT jobherd.tend_schedules(%(by)s::text) OFFSET 0) AS tended
