-- Add new jobs of the same kind and queue to a claim, up to %(wanted)s jobs. Run by a worker whose batch handler
-- waits for more jobs for a call. It found the queue empty when it claimed, so the
-- jobs are searched among the first 500.
-- me and picked are as in claim_jobs.sql, and so is the fence. A job that must run alone is not added, and gets
-- no others. A job is claimed under the token of the claim that it joins. The row of the claim is locked first:
-- a process that reclaims the claim takes this job too, or the job is not claimed.
-- If there is a pause or limit nothing is added: claim_gated.sql decides which jobs may run.
WITH me AS MATERIALIZED (
    SELECT
      FROM jobherd.supervisors
     WHERE id = %(supervisor)s AND lease_until > clock_timestamp()
), held AS MATERIALIZED (
    SELECT token, queue, jobs
      FROM jobherd.running r
     WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM me)
       AND NOT EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.alone)
       AND r.limited_kind IS NULL AND NOT EXISTS (SELECT FROM jobherd.gates g
                                           WHERE (g.scope, g.name) IN (('queue', r.queue), ('kind', %(kind)s), ('all', '*')))
       FOR UPDATE
), picked AS MATERIALIZED (
    SELECT r.ctid AS place, pg_column_size(r.payload) + coalesce(pg_column_size(r.extras), 0) AS bytes
      FROM jobherd.ready r
     WHERE r.queue = (SELECT queue FROM held) AND r.kind = %(kind)s AND NOT r.alone
       AND r.id = ANY (ARRAY(SELECT f.id FROM jobherd.ready f WHERE f.queue = (SELECT queue FROM held) ORDER BY f.priority, f.id LIMIT 500))
       -- AND the conditions of this claim
     ORDER BY r.priority, r.id
     LIMIT %(wanted)s
       FOR UPDATE SKIP LOCKED
), taken AS (
    -- As in claim_jobs.sql a megabyte fills it, including the jobs that it already holds. Its row may be stored
    -- compressed, so they are measured one by one.
    DELETE FROM jobherd.ready
     WHERE ctid = ANY (ARRAY(SELECT place
                               FROM (SELECT place, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING)
                                                   + (SELECT sum(pg_column_size(j)) FROM held CROSS JOIN LATERAL unnest(jobs) AS j) AS bytes
                                       FROM picked) AS p
                              WHERE bytes <= 1000000))
    RETURNING ready AS job, id, kind, queue, priority
), joined AS (
    UPDATE jobherd.running
       SET jobs = running.jobs || (SELECT array_agg(t.job ORDER BY t.priority, t.id) FROM taken t)
     WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM taken)
)
SELECT h.token, t.id, t.kind, t.queue, (t.job).payload::text AS payload, (t.job).attempts + 1 AS attempts, (t.job).max_attempts,
       (t.job).crashes, t.priority, (t.job).timeout, date_part('epoch', (t.job).created_at) AS created_at,
       date_part('epoch', (t.job).run_at) AS run_at,
       date_part('epoch', (t.job).expires_at - clock_timestamp()) AS good_for,
       date_part('epoch', clock_timestamp() - greatest((t.job).run_at, (t.job).created_at)) AS waited,
       false AS more,
       CASE WHEN NOT (t.job).extras IS NULL THEN to_json((t.job).extras)::text END AS extras
  FROM held h CROSS JOIN taken t
 ORDER BY t.priority, t.id
