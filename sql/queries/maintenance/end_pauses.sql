-- Resume the pauses whose time has ended. Returns the seconds until the next one ends, whether jobs are parked,
-- whether there are concurrency limits that no maintenance process has seen yet, whether there are requests to
-- cancel, the seconds until a schedule is due, whether a worker could not store a schedule, and whether jobs wait for
-- other jobs, and whether jobs wait for signals. Run by maintenance processes.
WITH due AS MATERIALIZED (
    SELECT scope, name FROM jobherd.gates WHERE resume_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
), resumed AS MATERIALIZED (
    SELECT CASE d.scope WHEN 'kind' THEN jobherd.resume(kind => d.name, actor => 'maintenance', reason => 'it was paused until now')
                        ELSE jobherd.resume(d.name, actor => 'maintenance', reason => 'it was paused until now') END
      FROM due d
)
SELECT (SELECT count(*) FROM resumed) AS opened,
       (SELECT extract(epoch FROM min(g.resume_at) - clock_timestamp())::double precision FROM jobherd.gates g WHERE g.resume_at > clock_timestamp())
       AS next_in,
       EXISTS (SELECT FROM jobherd.parked) AS parked,
       EXISTS (SELECT FROM jobherd.gates g WHERE num_nonnulls(g.max_running, g.each_running) > 0 AND g.seen_at IS NULL) AS unseen,
       EXISTS (SELECT FROM jobherd.cancels) AS asked,
       jobherd.schedules_due_in() AS schedules_in,
       EXISTS (SELECT FROM jobherd.declarations d WHERE d.pending IS NOT NULL) AS postponed,
       EXISTS (SELECT FROM jobherd.edges e WHERE e.state IS NULL) OR EXISTS (SELECT FROM jobherd.ends)
       OR EXISTS (SELECT FROM jobherd.flows f WHERE f.state = 'open') AS joins,
       EXISTS (SELECT FROM jobherd.waits) AS waits
