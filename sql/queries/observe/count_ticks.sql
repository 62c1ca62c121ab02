-- Count the instants of schedules that were decided after %(since)s and until `until`, which is %(lag)s seconds ago, or
-- earlier if there are more than %(most)s rows. So a transaction that commits a little later is counted by the next call.
-- Run by a web process for the metrics. A row of several instants that did not run counts as these. The first row has no
-- schedule.
WITH bounds AS MATERIALIZED (
    SELECT greatest(%(since)s::timestamptz,
                    least(clock_timestamp() - make_interval(secs => %(lag)s),
                          (SELECT t.noted_at FROM jobherd.ticks t WHERE t.noted_at > %(since)s::timestamptz
                            ORDER BY t.noted_at OFFSET %(most)s::integer LIMIT 1))) AS until
)
SELECT b.until, NULL AS schedule, NULL AS decided, 0::bigint AS instants FROM bounds b
UNION ALL
SELECT b.until, t.schedule, t.decided,
       sum(CASE WHEN t.job IS NULL AND t.since IS NOT NULL THEN 1 + t.missed ELSE 1 END)::bigint
  FROM bounds b JOIN jobherd.ticks t ON t.noted_at > %(since)s::timestamptz AND t.noted_at <= b.until
 GROUP BY b.until, t.schedule, t.decided
 ORDER BY schedule NULLS FIRST
