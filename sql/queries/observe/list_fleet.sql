-- List the supervisors of the fleet with the last report of each, and its age. Run on users' request, and by the
-- dashboard.
SELECT s.id, s.host, s.pid, s.version, s.started_at, s.lease_until,
       extract(epoch FROM clock_timestamp() - s.started_at)::double precision AS up_for,
       extract(epoch FROM clock_timestamp() - s.beat_at)::double precision AS beat_age,
       extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS lease_left,
       s.lease_until < clock_timestamp() AS expired,
       s.facts, s.facts_at, extract(epoch FROM clock_timestamp() - s.facts_at)::double precision AS facts_age
  FROM jobherd.supervisors s
 WHERE s.via IS NULL
 ORDER BY s.host, s.id
 LIMIT %(most)s::integer
