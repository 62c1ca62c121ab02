-- List the keys of unique jobs that count now, those of the newest jobs first. Run on users' request.
-- Parameters: kind, job (only its keys) or null each, limit.
-- Columns: key (in hexadecimal), kind, shown (what it is made of; null: encrypted or redacted), during (live, waiting,
-- never), job, state, since (null with state: nothing is kept of the job), until (null: no time), asked_at.
SELECT encode(k.key, 'hex') AS key, k.kind, k.shown, k.during, k.job, j.state, j.created_at AS since, k.until, clock_timestamp() AS asked_at
  FROM (SELECT * FROM jobherd.keys u
         WHERE (%(kind)s::text IS NULL OR u.kind = %(kind)s::text) AND (%(job)s::bigint IS NULL OR u.job = %(job)s::bigint)
         ORDER BY u.job DESC, u.key
        OFFSET 0) AS k
  LEFT JOIN LATERAL (SELECT v.state, v.created_at FROM jobherd.jobs v WHERE v.id = k.job LIMIT 1) AS j ON true
 WHERE k.until > clock_timestamp()
    OR k.during = 'live' AND j.state IN ('ready', 'scheduled', 'retrying', 'running')
    OR k.during = 'waiting' AND j.state IN ('ready', 'scheduled')
 ORDER BY k.job DESC, k.key
 LIMIT %(limit)s::integer
