-- List the current claims, longest first, each with the job that last reported progress, or else its first job.
-- Run by `jobherd top`, twice a second.
--
-- The table holds one row for each claimed batch. Only the status board of the worker knows which job of a batch
-- is running. Jobs that are claimed in batches finish before a person could read their names. A remote worker has no
-- slot.
SELECT j.id, j.kind, r.queue, j.attempts, s.host, CASE WHEN s.via IS NULL THEN c.slot END AS slot, cardinality(r.jobs) AS held, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) AS cancelled,
       extract(epoch FROM clock_timestamp() - r.claimed_at)::double precision AS held_for,
       (p.progress ->> 'fraction')::double precision AS fraction, left(p.progress ->> 'note', 200) AS note
  FROM (SELECT * FROM jobherd.running ORDER BY claimed_at LIMIT %(most)s::integer) AS r
  LEFT JOIN jobherd.children c ON c.id = r.child
  LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor
  LEFT JOIN LATERAL (
    SELECT p.job, p.progress FROM jobherd.progress p
     WHERE p.token = r.token AND p.job = ANY (ARRAY(SELECT h.id FROM unnest(r.jobs) AS h))
     ORDER BY p.at DESC LIMIT 1
 ) AS p ON true
 CROSS JOIN LATERAL (SELECT h.id, h.kind, h.attempts + 1 AS attempts FROM unnest(r.jobs) AS h WHERE h.id = coalesce(p.job, r.jobs[1].id) LIMIT 1) AS j
 ORDER BY r.claimed_at
