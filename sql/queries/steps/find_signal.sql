-- Find the next signal for a step of a running job: of its topic, the oldest that the job has not taken. Returns its id (null:
-- there is none) and payload, whether the job has waited for it before, and how many seconds it may wait yet (null: without
-- a timeout).
SELECT s.id, s.payload::text AS payload, w.job IS NOT NULL AS waited,
       extract(epoch FROM w.until - clock_timestamp())::float8 AS seconds
  FROM (SELECT (j.extras).tenant FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
         WHERE r.child = %(child)s AND r.token = %(token)s AND j.id = %(job)s) AS own
  LEFT JOIN jobherd.waits w ON w.job = %(job)s AND w.name = %(name)s
  LEFT JOIN LATERAL (
       SELECT s.id, s.payload FROM jobherd.signals s
        WHERE s.topic = %(topic)s AND (s.tenants IS NULL OR own.tenant = ANY (s.tenants))
          AND NOT EXISTS (SELECT FROM jobherd.steps t WHERE t.job = %(job)s AND t.signal = s.id)
        ORDER BY s.id LIMIT 1) AS s ON true
