-- Count the jobs that become due in each of the next %(hours)s hours (0: the hour that begins now, and the
-- overdue jobs). Reads the next %(most)s by time and no more. If there are more, every row is `capped`.
WITH next AS MATERIALIZED (
    SELECT s.run_at FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT %(most)s::bigint
), hours AS (
    SELECT greatest(0, floor(extract(epoch FROM run_at - clock_timestamp()) / 3600))::integer AS hour FROM next
)
SELECT hour, count(*) AS jobs, (SELECT count(*) FROM next) >= %(most)s::bigint AS capped FROM hours WHERE hour < %(hours)s::integer GROUP BY hour ORDER BY hour
