-- Show the fleet in numbers: supervisors with and without a lease, their versions, workers, remote workers,
-- and whether jobs are due.
SELECT (SELECT count(*) FROM jobherd.supervisors WHERE via IS NULL AND lease_until > clock_timestamp()) AS supervisors,
       (SELECT count(*) FROM jobherd.supervisors WHERE via IS NULL AND lease_until <= clock_timestamp()) AS expired,
       (SELECT array_agg(DISTINCT version) FROM jobherd.supervisors WHERE via IS NULL AND lease_until > clock_timestamp()) AS versions,
       (SELECT count(*) FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
         WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS workers,
       (SELECT count(*) FROM jobherd.supervisors WHERE via IS NOT NULL AND lease_until > clock_timestamp()) AS remote,
       EXISTS (SELECT FROM jobherd.waiting) AS waiting
