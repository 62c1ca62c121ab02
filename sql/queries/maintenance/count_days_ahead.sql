-- Return for how many days ahead there must be partitions: %(least)s; once the default partitions hold more than
-- %(crowded)s bytes, as many days as any kind keeps its jobs. At most %(most)s, and at most as many as the
-- server's lock table has room for in ten queries at once, of seven locks a day each. Also returns whether the
-- default partitions hold more, and how many locks per transaction would be needed if that is too few; then how
-- many partitions are missing, how many of these today's and tomorrow's outcomes need, whether a job runs, and whether
-- the default partition of the history has never held a row. Run by maintenance processes.
-- Rows that are kept for longer go into the default partitions and move when their day comes near. With a
-- partition for each day of a year, every query of the history would cost ten times as much, for an occasional
-- failure. While another session holds or wants an exclusive lock on a default partition, such as a maintenance
-- process that creates a partition, the size is unknown (NULL): reading it would mean waiting for that session.
WITH kept AS (
    SELECT least(coalesce(max(greatest(k.keep_completed, k.keep_failed)), 0) + 2, %(most)s::integer) AS days FROM jobherd.kinds k
), room AS (
    SELECT 70.0 / current_setting('max_connections')::integer AS share, current_setting('max_locks_per_transaction')::integer AS locks
), crowd AS (
    SELECT CASE WHEN NOT EXISTS (SELECT FROM pg_locks l
                                  WHERE l.relation IN ('jobherd.history_default'::regclass, 'jobherd.attempts_default'::regclass)
                                    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                                    AND l.mode = 'AccessExclusiveLock')
                THEN pg_table_size('jobherd.history_default') + pg_table_size('jobherd.attempts_default') > %(crowded)s::bigint
           END AS crowded
), ahead AS MATERIALIZED (
    SELECT CASE WHEN c.crowded THEN greatest(%(least)s::integer, least(k.days, floor(r.locks / r.share)::integer)) ELSE %(least)s::integer END AS days,
           c.crowded,
           CASE WHEN c.crowded AND k.days * r.share > r.locks THEN ceil(k.days * r.share)::integer END AS locks
      FROM kept k CROSS JOIN room r CROSS JOIN crowd c
), missing AS MATERIALIZED (
    SELECT day IN (SELECT d + later FROM jobherd.kept_days() AS d CROSS JOIN generate_series(0, 1) AS later) AS needed
      FROM ahead CROSS JOIN unnest('{history,attempts}'::text[]) AS parent CROSS JOIN generate_series(1, days) AS day
     WHERE to_regclass('jobherd.' || parent || '_' || to_char((now() AT TIME ZONE 'UTC')::date + day, 'YYYYMMDD')) IS NULL
)
SELECT days, crowded, locks, (SELECT count(*) FROM missing) AS missing, (SELECT count(*) FROM missing WHERE needed) AS needed,
       EXISTS (SELECT FROM jobherd.running) AS busy,
       CASE WHEN crowded IS NOT NULL THEN pg_relation_size('jobherd.history_default') = 0 END AS vacant
  FROM ahead
