-- Release the jobs of a claim after the one that runs, which takes longer than expected. Run by the supervisor,
-- which has told the worker on its status board to start none of them. Jobs with a request to cancel stay, for
-- the worker to record, and so do those that run in the same call: %(called)s. A job whose id a ready job has
-- gets another id, as in requeue_child.sql.
WITH held AS MATERIALIZED (
    SELECT jobs
      FROM jobherd.running WHERE child = %(child)s AND token = %(token)s FOR UPDATE
), job AS MATERIALIZED (
    SELECT j AS job, j.*, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) OR (j.priority, j.id) <= (one.priority, one.id)
                OR j.id = ANY (coalesce(%(called)s::bigint[], '{}')) AS stays
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
           CROSS JOIN LATERAL (SELECT c.priority, c.id FROM unnest(h.jobs) AS c WHERE c.id = %(job)s) AS one
), kept AS (
    UPDATE jobherd.running
       SET jobs = (SELECT array_agg(j.job ORDER BY j.priority, j.id) FROM job j WHERE j.stays)
     WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM job WHERE NOT stays)
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT CASE WHEN row_number() OVER (PARTITION BY id) = 1 AND NOT EXISTS (SELECT FROM ONLY jobherd.ready w WHERE w.id = job.id) THEN id ELSE nextval('jobherd.job_ids') END,
           created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
           queue, kind, payload, extras
      FROM job
     WHERE NOT stays
)
SELECT id FROM job WHERE NOT stays
