-- List the jobs that sessions hold, with what the gateway must know to judge their results. Run by the gateway: when
-- a session is resumed, what is missing in the answer was lost; for results that were reported at a gateway that does
-- not serve the session; and for sessions of which another gateway may have settled jobs.
-- Parameters: children (array). Columns: child, token, job, kind, attempts (with this one), max_attempts, timeout
-- (seconds; null: none), crashes, webhook (whether the job has one) and held_for (seconds since the claim), in the
-- order of child, token and each claim.
SELECT r.child, r.token, j.id AS job, j.kind, j.attempts + 1 AS attempts, j.max_attempts, j.timeout,
       j.crashes, (j.extras).webhook IS NOT NULL AS webhook,
       extract(epoch FROM clock_timestamp() - r.claimed_at)::double precision AS held_for
  FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) WITH ORDINALITY AS j
 WHERE r.child = ANY (%(children)s::bigint[])
 ORDER BY r.child, r.token, j.ordinality
