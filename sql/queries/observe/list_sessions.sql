-- List the sessions of remote workers, each with the supervisor whose gateway serves it and what it holds. Run on
-- users' request, and by the dashboard.
-- connected: a gateway renews the session while the worker's stream is open, three times a lease. It also ends the
-- lease of a worker that stays away. So a session that was not renewed for half of its lease has lost its worker
-- or its gateway.
SELECT s.id, s.via, s.host AS worker, s.version AS client, s.principal, s.started_at, s.beat_at AS seen_at, s.lease_until,
       extract(epoch FROM clock_timestamp() - s.started_at)::double precision AS up_for,
       extract(epoch FROM clock_timestamp() - s.beat_at)::double precision AS seen_age,
       extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS lease_left,
       clock_timestamp() < s.beat_at + (s.lease_until - s.beat_at) / 2
           AND EXISTS (SELECT FROM jobherd.supervisors v WHERE v.id = s.via AND v.lease_until > clock_timestamp()) AS connected,
       held.tasks, held.held_for, held.job, held.job_kind
  FROM jobherd.supervisors s
       CROSS JOIN LATERAL (
           SELECT coalesce(sum(cardinality(r.jobs)), 0)::bigint AS tasks,
                  extract(epoch FROM clock_timestamp() - min(r.claimed_at))::double precision AS held_for,
                  (array_agg(r.jobs[1].id ORDER BY r.claimed_at))[1] AS job,
                  (array_agg(r.jobs[1].kind ORDER BY r.claimed_at))[1] AS job_kind
             FROM jobherd.children c JOIN jobherd.running r ON r.child = c.id
            WHERE c.supervisor = s.id) AS held
 WHERE s.via IS NOT NULL
 ORDER BY s.via, s.host, s.id
 LIMIT %(most)s::integer
