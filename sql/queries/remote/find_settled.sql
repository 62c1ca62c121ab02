-- Find which attempts a remote worker has already settled. Run by the gateway for results whose claim does not
-- hold the job any more: if the worker had sent the result before, it is acknowledged again, else the claim was
-- lost. Attempts that ended without the worker, because a lease had expired, are not returned. Nor is a completed
-- job of a kind that keeps no completed jobs.
-- Parameters: jobs and tokens (arrays of equal length). Columns: job, token.
-- Cost: an attempt is searched by the id of its job in each day's partition.
SELECT w.job, w.token
  FROM unnest(%(jobs)s::bigint[], %(tokens)s::bigint[]) AS w (job, token)
 WHERE EXISTS (SELECT FROM jobherd.history h
                WHERE h.id = w.job AND h.token = w.token
                  AND (h.error_code IS NULL OR h.error_code NOT IN ('WORKER_LOST', 'LEASE_EXPIRED')))
    OR EXISTS (SELECT FROM jobherd.attempts a
                WHERE a.job = w.job AND a.token = w.token
                  AND (a.error_code IS NULL OR a.error_code NOT IN ('WORKER_LOST', 'LEASE_EXPIRED')))
