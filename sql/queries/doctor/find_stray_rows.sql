-- Find whether rows are in a default partition because their own partition was missing. Only the days that always
-- have a partition are checked. Rows that are kept for longer may be in the default partition, and so may rows that
-- are kept until the day ends. The role jobherd_work may not read these partitions.
SELECT EXISTS (SELECT FROM jobherd.history_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31)
       OR EXISTS (SELECT FROM jobherd.attempts_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31) AS stray
  FROM (SELECT (now() AT TIME ZONE 'UTC')::date AS today) AS t
