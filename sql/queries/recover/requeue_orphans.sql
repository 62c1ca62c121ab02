-- Release running jobs whose child process is not registered: a claim of a child that was already given up
-- committed late. The same applies to children whose supervisor has no row: its row was deleted and its process
-- is dead, so no supervisor would ever reclaim them. Run by maintenance processes every few seconds. The attempt
-- stays counted and each job is next claimed alone, since it may have started. A claim that the transaction of
-- such a job still has locked is left for the next time, and so is a claim of a job whose id a ready job has
-- (see promote_due.sql). If two jobs return with one id, the second one gets another. A claim may have a
-- timestamp in the future: the clock was set back.
WITH stray AS (
    DELETE FROM jobherd.children c WHERE NOT EXISTS (SELECT FROM jobherd.supervisors s WHERE s.id = c.supervisor) RETURNING c.id
), free AS MATERIALIZED (
    SELECT r.child, r.token
      FROM jobherd.running r
     WHERE (NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = r.child) OR r.child IN (SELECT id FROM stray))
       AND NOT EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE (SELECT true FROM ONLY jobherd.ready w WHERE w.id = j.id))
       FOR UPDATE SKIP LOCKED
), held AS (
    DELETE FROM jobherd.running r USING free f WHERE r.child = f.child AND r.token = f.token
    RETURNING r.token, r.claimed_at, r.jobs
), job AS MATERIALIZED (
    SELECT j.*, h.token, h.claimed_at, coalesce(k.keep_failed, 30) AS keep,
           CASE WHEN EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) THEN 'cancelled'
                WHEN j.attempts + 1 >= coalesce(j.max_attempts, k.max_attempts, 5) THEN 'failed'
                ELSE 'ready' END AS fate
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j LEFT JOIN jobherd.kinds k ON k.name = j.kind
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT CASE WHEN row_number() OVER (PARTITION BY id ORDER BY token) = 1 THEN id ELSE nextval('jobherd.job_ids') END,
           created_at, run_at, expires_at, timeout, jsonb_build_object('code', 'WORKER_LOST', 'message', 'its child was lost'),
           priority, attempts + 1, max_attempts, crashes, true, queue, kind, payload, extras
      FROM job
     WHERE fate = 'ready'
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, error_code, error)
    SELECT id, created_at, run_at, least(claimed_at, statement_timestamp()), clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + keep, token, priority,
           attempts + 1, max_attempts, crashes, fate, queue, kind, payload, extras, timeout, CASE fate WHEN 'failed' THEN 'WORKER_LOST' ELSE 'JOB_CANCELLED' END,
           'its child was lost'
      FROM job
     WHERE fate <> 'ready'
), tried AS (
    INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error)
    SELECT id, token, attempts + 1, 'lost', claimed_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + keep, 'WORKER_LOST',
           'its child was lost: its claim was committed after the child was given up'
      FROM job
     WHERE fate = 'ready'
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=' || fate)) FROM job WHERE fate <> 'ready'
)
SELECT id FROM job LEFT JOIN told ON true
