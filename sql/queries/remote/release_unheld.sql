-- Release the jobs of a session that its worker does not hold: their claim, or its answer, never reached the worker.
-- Run by the gateway in the transaction that has resumed the session (attach_session.sql). Nothing of them has
-- started, so the attempt is not counted.
-- Parameters: child; the jobs that the worker has named in jobs and tokens (arrays of equal length).
-- Columns: token, job. A job whose id a ready job has returns with another id.
WITH rest AS MATERIALIZED (
    SELECT r.child, r.token, array_agg(j.id) AS jobs
      FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE r.child = %(child)s
       AND NOT EXISTS (SELECT FROM unnest(%(jobs)s::bigint[], %(tokens)s::bigint[]) AS h (job, token)
                        WHERE h.job = j.id AND h.token = r.token)
     GROUP BY r.child, r.token
)
SELECT rest.token, b.id AS job
  FROM rest CROSS JOIN LATERAL jobherd.requeue(ARRAY[rest.child], ARRAY[rest.token], only_jobs => rest.jobs) AS b
