-- Show the fleet in numbers: supervisors with and without a lease, their versions, workers, and whether jobs are due.
SELECT (SELECT count(*) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS supervisors,
       (SELECT count(*) FROM jobherd.supervisors WHERE lease_until <= clock_timestamp()) AS lapsed,
       (SELECT array_agg(DISTINCT version) FROM jobherd.supervisors WHERE lease_until > clock_timestamp()) AS versions,
       (SELECT count(*) FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
         WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS workers,
       EXISTS (SELECT FROM jobherd.waiting) AS waiting
