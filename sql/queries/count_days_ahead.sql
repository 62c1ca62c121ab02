-- For how many days ahead there are to be partitions: %(least)s, and once the default ones hold more than %(crowded)s bytes, as many as any kind keeps its
-- jobs, but %(most)s at the most, and no more than the server's table of locks has room for in ten looks at once, of seven locks a day each. Whether they
-- do hold more, and how many locks there would have to be for each transaction, if that is too few. Run by keepers. What is kept for longer falls into the
-- default ones and moves when its day comes near, and with a partition for each day of a year every look at the past would cost ten times as much, for a
-- failure now and then. While somebody has or wants one of them for himself, as another keeper that is making a partition, nobody knows (NULL): to look would be to
-- wait for him.
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
)
SELECT CASE WHEN c.crowded THEN greatest(%(least)s::integer, least(k.days, floor(r.locks / r.share)::integer)) ELSE %(least)s::integer END AS days,
       c.crowded,
       CASE WHEN c.crowded AND k.days * r.share > r.locks THEN ceil(k.days * r.share)::integer END AS locks
  FROM kept k CROSS JOIN room r CROSS JOIN crowd c
