-- List up to %(most)s schedules by name, or only the one with %(name)s: with the last instant that was decided, the
-- state of its job, the seconds by which the next one is late, and whether a worker has declared the kind.
SELECT clock_timestamp() AS asked_at, s.name, s.kind, s.cron, s.every, s.tz, s.payload, s.options, s.next_at, s.last_at,
       s.declared IS NOT NULL AS declared, s.edited_by, s.edited_at, s.paused_at, s.paused_by, s.pause_reason, s.resume_at,
       s.retired_at, s.error, s.held ->> 'at' AS held_at, s.backfill ->> 'to' AS backfilled_to, cardinality(s.asked) AS asked,
       CASE WHEN s.paused_at IS NULL AND s.retired_at IS NULL AND s.error IS NULL
            THEN extract(epoch FROM clock_timestamp() - coalesce(s.plan_from, s.next_at))::double precision END AS late,
       EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = s.kind) AS known,
       t.at, t.since, t.decided, t.job, t.missed, t.because, t.noted_at, j.state, j.error_code
  FROM jobherd.schedules s
       LEFT JOIN LATERAL (SELECT t.* FROM jobherd.ticks t WHERE t.schedule = s.name ORDER BY t.at DESC LIMIT 1) AS t ON true
       LEFT JOIN LATERAL (SELECT j.state, j.error_code FROM jobherd.jobs j WHERE j.id = t.job LIMIT 1) AS j ON true
 WHERE %(name)s::text IS NULL OR s.name = %(name)s::text
 ORDER BY s.name
 LIMIT %(most)s::integer
