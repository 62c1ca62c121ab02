-- Unregister a supervisor that exits: its lease ends, and the jobs that its child processes may still hold are
-- ready again at once, the attempt not counted. Jobs with a request to cancel are canceled. A job whose id a
-- ready job has gets another id, as in requeue_child.sql.
WITH me AS (
    DELETE FROM jobherd.supervisors WHERE id = %(supervisor)s RETURNING id
), gone AS (
    DELETE FROM jobherd.children c USING me WHERE c.supervisor = me.id RETURNING c.id
), held AS (
    DELETE FROM jobherd.running r USING gone g WHERE r.child = g.id RETURNING r.token, r.jobs
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
    RETURNING id
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes, state,
                                 queue, kind, payload, extras, timeout, error_code, error)
    SELECT id, created_at, run_at, clock_timestamp(),
           (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = job.kind), 30), token, priority, attempts, max_attempts, crashes,
           'cancelled', queue, kind, payload, extras, timeout, 'JOB_CANCELLED', 'cancelled; its supervisor has left'
      FROM job
     WHERE cancelled
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM job WHERE cancelled
)
SELECT (SELECT count(*) FROM back) AS jobs FROM told
