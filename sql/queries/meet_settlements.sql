-- Wait for settlements of these jobs that are under way: they may have looked for waiters before there was one. Run once by whoever waits for
-- running jobs, after announce_wait.sql; it looks at the jobs again afterwards. A job that just runs holds nobody up.
SELECT jobherd.meet_settlements(%(ids)s::bigint[])
