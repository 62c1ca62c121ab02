-- The fleet in numbers: supervisors with and without a lease, their versions, workers, whether jobs are due, rows that lie where no
-- partition was ready for them, and until when partitions stand.
SELECT (SELECT count(*) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS supervisors,
       (SELECT count(*) FROM jobherd.supervisors WHERE lease_until <= clock_timestamp()) AS lapsed,
       (SELECT array_agg(DISTINCT version) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS versions,
       (SELECT count(*) FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
         WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS workers,
       EXISTS (SELECT FROM jobherd.ready) AS waiting,
       EXISTS (SELECT FROM jobherd.history_default) OR EXISTS (SELECT FROM jobherd.attempts_default) AS stray
