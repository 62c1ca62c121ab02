-- Show the fleet in numbers: supervisors with and without a lease, their versions, workers, whether jobs are
-- due, and whether rows are in a default partition because their own partition was missing. Only the days that
-- always have a partition are checked. Rows that are kept for longer may be in the default partition, and so may
-- rows that are kept until the day ends.
SELECT (SELECT count(*) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS supervisors,
       (SELECT count(*) FROM jobherd.supervisors WHERE lease_until <= clock_timestamp()) AS lapsed,
       (SELECT array_agg(DISTINCT version) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS versions,
       (SELECT count(*) FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
         WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS workers,
       EXISTS (SELECT FROM jobherd.waiting) AS waiting,
       EXISTS (SELECT FROM jobherd.history_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31)
       OR EXISTS (SELECT FROM jobherd.attempts_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31) AS stray
  FROM (SELECT (now() AT TIME ZONE 'UTC')::date AS today) AS t
