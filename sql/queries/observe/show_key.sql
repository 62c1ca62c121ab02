-- Show the key that a unique job was enqueued with, and the job that holds it now. Run on users' request.
-- No row: the job has no key. A key with `during` never is that of the job until another job takes it, or it is
-- deleted. Parameter: id.
-- Columns: key (in hexadecimal), shown (what it is made of; null: encrypted, redacted or deleted), during, until, holder
-- (null: no job holds the key).
SELECT encode(one.key, 'hex') AS key, k.shown, k.during, k.until,
       CASE WHEN k.until > clock_timestamp()
                 OR k.during = 'live' AND j.state IN ('ready', 'scheduled', 'retrying', 'running')
                 OR k.during = 'waiting' AND j.state IN ('ready', 'scheduled') THEN k.job END AS holder
  FROM (SELECT u.key
          FROM (SELECT (w.extras).unique_key AS key FROM jobherd.waiting w WHERE w.id = %(id)s::bigint
                UNION ALL SELECT (s.extras).unique_key FROM jobherd.scheduled s WHERE s.id = %(id)s::bigint
                UNION ALL SELECT (r.extras).unique_key FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS r
                           WHERE r.id = %(id)s::bigint
                UNION ALL SELECT (h.extras).unique_key FROM jobherd.history h WHERE h.id = %(id)s::bigint
                UNION ALL SELECT t.key FROM jobherd.keys t WHERE t.timed_job = %(id)s::bigint AND t.job = %(id)s::bigint) AS u
         WHERE u.key IS NOT NULL
         LIMIT 1) AS one
  LEFT JOIN jobherd.keys k ON k.key = one.key
  LEFT JOIN LATERAL (
       SELECT CASE WHEN w.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state FROM jobherd.waiting w WHERE w.id = k.job
       UNION ALL SELECT CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END FROM jobherd.scheduled s WHERE s.id = k.job
       UNION ALL SELECT 'running' FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS r WHERE r.id = k.job
       LIMIT 1) AS j ON true
