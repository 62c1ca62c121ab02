-- Wait for settlements of these jobs that are in progress: they may have checked for waiting clients before this
-- client had announced itself. Run once by a client that waits for running jobs, after announce_wait.sql; the
-- client queries the jobs again afterwards. A job that is only running delays nothing.
SELECT jobherd.meet_settlements(%(ids)s::bigint[])
