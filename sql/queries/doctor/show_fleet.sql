-- The fleet in numbers: supervisors with and without a lease, their versions, workers, whether jobs are due, rows that lie where no
-- partition was ready for them: of the days of which there is one always. What is kept for longer may stand there, and what is kept until the day is over.
SELECT (SELECT count(*) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS supervisors,
       (SELECT count(*) FROM jobherd.supervisors WHERE lease_until <= clock_timestamp()) AS lapsed,
       (SELECT array_agg(DISTINCT version) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS versions,
       (SELECT count(*) FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
         WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS workers,
       EXISTS (SELECT FROM jobherd.ready) AS waiting,
       EXISTS (SELECT FROM jobherd.history_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31)
       OR EXISTS (SELECT FROM jobherd.attempts_default WHERE drop_on BETWEEN t.today + 1 AND t.today + 31) AS stray
  FROM (SELECT (now() AT TIME ZONE 'UTC')::date AS today) AS t
