-- List the registered supervisors, with the age of their leases in seconds. Run on users' request.
SELECT s.id, s.host, s.pid, s.version, s.started_at, s.beat_at, s.lease_until,
       extract(epoch FROM clock_timestamp() - s.started_at)::double precision AS up_for,
       extract(epoch FROM clock_timestamp() - s.beat_at)::double precision AS beat_age,
       extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS lease_left,
       s.lease_until < clock_timestamp() AS expired
  FROM jobherd.supervisors s
 WHERE s.via IS NULL
 ORDER BY s.id
