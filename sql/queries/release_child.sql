-- Give back what a dead child had claimed and not started; what it had started was settled before by its parent. Run by the
-- parent, after the child's backend has ended: a claim that was in flight when the child died still commits.
-- %(counted)s is true when nobody knows which job it had started: then each keeps its attempt and is next claimed alone.
WITH gone AS (
    DELETE FROM jobherd.children WHERE supervisor = %(supervisor)s AND incarnation = %(incarnation)s RETURNING id
), held AS (
    DELETE FROM jobherd.running r USING gone WHERE r.child = gone.id RETURNING r.token, r.jobs
), job AS MATERIALIZED (
    SELECT j.*, h.token, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) AS cancelled FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT id, created_at, run_at, good_until, timeout, last_error, priority,
           CASE WHEN %(counted)s::boolean THEN attempts ELSE greatest(attempts - 1, 0) END, max_attempts, crashes, %(counted)s::boolean,
           queue, kind, payload, extras
      FROM job
     WHERE NOT cancelled
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes, state,
                                 queue, kind, payload, extras, timeout, error_code, error)
    SELECT id, created_at, run_at, clock_timestamp(),
           (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = job.kind), 30), token, priority,
           CASE WHEN %(counted)s::boolean THEN attempts ELSE greatest(attempts - 1, 0) END, max_attempts, crashes, 'cancelled',
           queue, kind, payload, extras, timeout, 'JOB_CANCELLED', 'cancelled before it started'
      FROM job
     WHERE cancelled
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM job WHERE cancelled
)
SELECT id FROM job LEFT JOIN told ON true
