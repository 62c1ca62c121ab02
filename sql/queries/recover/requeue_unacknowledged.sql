-- Release what this worker has claimed without receiving the answer: the session broke between the commit and
-- the answer. Run by a worker that has a new session, once its old one is certainly dead. %(heard)s are the
-- tokens that it holds. Nothing of the other claims has started, so the attempt is not counted. A job whose id a
-- ready job has gets another id, as in requeue_child.sql.
WITH held AS (
    DELETE FROM jobherd.running r WHERE r.child = %(child)s AND r.token <> ALL (%(heard)s::bigint[])
    RETURNING r.token, r.jobs
), job AS MATERIALIZED (
    SELECT j.*, h.token, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) AS cancelled FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT CASE WHEN row_number() OVER (PARTITION BY id ORDER BY token) = 1 AND NOT EXISTS (SELECT FROM ONLY jobherd.ready w WHERE w.id = job.id) THEN id ELSE nextval('jobherd.job_ids') END,
           created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
           queue, kind, payload, extras
      FROM job
     WHERE NOT cancelled
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes, state,
                                 queue, kind, payload, extras, timeout, error_code, error)
    SELECT id, created_at, run_at, clock_timestamp(),
           (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = job.kind), 30), token, priority, attempts, max_attempts, crashes,
           'cancelled', queue, kind, payload, extras, timeout, 'JOB_CANCELLED', 'cancelled before it started'
      FROM job
     WHERE cancelled
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM job WHERE cancelled
)
SELECT id FROM job LEFT JOIN told ON true
