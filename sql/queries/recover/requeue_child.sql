-- Release what a dead child process had claimed and not started; its supervisor has recorded before what it had
-- started. Run by the supervisor, after the child's backend has ended: a claim that was in flight when the child
-- died still commits.
-- %(cleared)s: the child's claims of which a job has started. Any other claim may have killed the child: its
-- jobs are next claimed alone, and a job that was alone in it counts a crash, and fails with %(error)s once its
-- kind allows no more of them. Null: the child did not crash.
-- A job whose id a ready job has gets another id: PostgreSQL would reject it, and all others with it.
WITH gone AS (
    DELETE FROM jobherd.children WHERE supervisor = %(supervisor)s AND incarnation = %(incarnation)s RETURNING id
), held AS (
    DELETE FROM jobherd.running r USING gone WHERE r.child = gone.id RETURNING r.token, r.jobs
), job AS MATERIALIZED (
    SELECT j.*, h.token, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) AS cancelled,
           coalesce(h.token <> ALL (%(cleared)s::bigint[]), false) AS suspect,
           coalesce(h.token <> ALL (%(cleared)s::bigint[]) AND cardinality(h.jobs) = 1, false) AS crashed
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
), judged AS MATERIALIZED (
    SELECT job.*, crashed AND NOT cancelled AND crashes + 1 >= coalesce((SELECT k.max_crashes FROM jobherd.kinds k WHERE k.name = job.kind), 3) AS failed
      FROM job
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT CASE WHEN row_number() OVER (PARTITION BY id ORDER BY token) = 1 AND NOT EXISTS (SELECT FROM ONLY jobherd.ready w WHERE w.id = judged.id) THEN id ELSE nextval('jobherd.job_ids') END,
           created_at, run_at, expires_at, timeout,
           CASE WHEN crashed THEN jsonb_build_object('code', 'WORKER_CRASHED', 'message', %(error)s::text) ELSE last_error END, priority,
           attempts, max_attempts, crashes + crashed::integer, suspect, queue, kind, payload, extras
      FROM judged
     WHERE NOT cancelled AND NOT failed
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes, state,
                                 queue, kind, payload, extras, timeout, error_code, error)
    SELECT id, created_at, run_at, clock_timestamp(),
           (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = judged.kind), 30), token, priority,
           attempts, max_attempts, crashes + crashed::integer, CASE WHEN cancelled THEN 'cancelled' ELSE 'failed' END,
           queue, kind, payload, extras, timeout, CASE WHEN cancelled THEN 'JOB_CANCELLED' ELSE 'WORKER_CRASHED' END,
           CASE WHEN cancelled THEN 'cancelled before it started' ELSE %(error)s::text END
      FROM judged
     WHERE cancelled OR failed
), tried AS (
    INSERT INTO jobherd.attempts (job, token, attempt, outcome, finished_at, drop_on, error_code, error)
    SELECT id, token, attempts + 1, 'abandoned', clock_timestamp(),
           (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = judged.kind), 30),
           'WORKER_CRASHED', %(error)s::text
      FROM judged
     WHERE crashed AND NOT cancelled AND NOT failed
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || CASE WHEN cancelled THEN '=cancelled' ELSE '=failed' END)) FROM judged WHERE cancelled OR failed
)
SELECT id FROM judged LEFT JOIN told ON true
