-- Releases the jobs of a claim that its worker will not settle: the worker died, its supervisor exited
-- or lost its lease, or a job of the claim runs longer than expected. The statements in
-- sql/queries/recover/ decide which claims; this function moves the jobs.

-- Ends the claims that the pairs of child and token name, as far as they still exist: the token fences it
-- against a settlement or a reclaim that was first. Returns each job with what became of it:
-- `ready`, `cancelled` for a job with a request to cancel, or `failed`.
--   suspects   for each claim, whether one of its jobs may have killed the worker before it started:
--              each is claimed alone next. A job that was alone in its claim counts a crash, and fails
--              with `message` once its kind allows no more of them. If null, `alone` stays as it is.
--   ran_on     for each claim, the process that held it.
--   lost       whether the jobs may have run. If so, the attempt counts, each job is claimed alone
--              next, and a job without attempts left fails: otherwise nothing would end it.
--   message    why the jobs come back, and `detail` the same for the list of attempts.
--   only_jobs  release only these jobs. The others stay in the claim. Its row is updated, not inserted
--              again: a settlement that waited for its lock must still find it.
-- A job whose id a ready job has gets another id: PostgreSQL would reject it, and all others with it.
-- The same applies to the second of two jobs with one id.
-- Order: history before attempts, as in every statement: the maintenance process locks them in that
-- order.
CREATE FUNCTION jobherd.requeue(
    children bigint[], tokens bigint[], suspects boolean[] DEFAULT NULL, ran_on text[] DEFAULT NULL,
    lost boolean DEFAULT false, message text DEFAULT NULL, detail text DEFAULT NULL, only_jobs bigint[] DEFAULT NULL
)
RETURNS TABLE(id bigint, fate text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    error_code CONSTANT text := CASE WHEN lost THEN 'WORKER_LOST' ELSE 'WORKER_CRASHED' END;
BEGIN
    RETURN QUERY
    WITH claim AS MATERIALIZED (
        SELECT r.child, r.token, r.claimed_at, r.jobs, c.suspect, c.ran_on
          FROM unnest(children, tokens, suspects, requeue.ran_on) AS c (child, token, suspect, ran_on)
               JOIN jobherd.running r ON r.child = c.child AND r.token = c.token
           FOR UPDATE OF r
    ), rest AS MATERIALIZED (
        SELECT c.child, c.token,
               (SELECT array_agg(j ORDER BY j.priority, j.id) FROM unnest(c.jobs) AS j
                 WHERE j.id <> ALL (only_jobs)) AS jobs
          FROM claim c
    ), kept AS (
        UPDATE jobherd.running r SET jobs = rest.jobs FROM rest
         WHERE r.child = rest.child AND r.token = rest.token AND rest.jobs IS NOT NULL
    ), gone AS (
        DELETE FROM jobherd.running r USING rest
         WHERE r.child = rest.child AND r.token = rest.token AND rest.jobs IS NULL
    ), released AS MATERIALIZED (
        SELECT j AS job, j.id, c.token, c.claimed_at, c.ran_on, c.suspect,
               NOT lost AND coalesce(c.suspect, false) AND cardinality(c.jobs) = 1 AS crashed
          FROM claim c CROSS JOIN LATERAL unnest(c.jobs) AS j
         WHERE only_jobs IS NULL OR j.id = ANY (only_jobs)
    ), judged AS MATERIALIZED (
        SELECT r.*, (r.job).attempts + lost::integer AS attempts, (r.job).crashes + r.crashed::integer AS crashes,
               (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30) AS drop_on,
               CASE WHEN EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = r.id) THEN 'cancelled'
                    WHEN lost AND (r.job).attempts + 1 >= coalesce((r.job).max_attempts, k.max_attempts, 5)
                         OR r.crashed AND (r.job).crashes + 1 >= coalesce(k.max_crashes, 3) THEN 'failed'
                    ELSE 'ready' END AS fate
          FROM released r LEFT JOIN jobherd.kinds k ON k.name = (r.job).kind
    ), changed AS MATERIALIZED (
        SELECT jsonb_populate_record(j.job, jsonb_build_object(
                   'id', CASE WHEN row_number() OVER (PARTITION BY j.id ORDER BY j.token) = 1
                                   AND NOT EXISTS (SELECT FROM jobherd.ready w WHERE w.id = j.id) THEN j.id
                              ELSE nextval('jobherd.job_ids') END,
                   'last_error', CASE WHEN lost OR j.crashed
                       THEN jsonb_build_object('code', error_code, 'message', requeue.message)
                                      ELSE (j.job).last_error END,
                   'attempts', j.attempts, 'crashes', j.crashes,
                   'alone', lost OR coalesce(j.suspect, (j.job).alone))) AS job
          FROM judged j
         WHERE j.fate = 'ready'
    ), back AS (
        INSERT INTO jobherd.ready SELECT (c.job).* FROM changed c
    ), past AS (
        INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority,
                                     attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error, ran_on)
        SELECT j.id, (j.job).created_at, (j.job).run_at,
               CASE WHEN lost THEN least(j.claimed_at, statement_timestamp()) END,
               clock_timestamp(), j.drop_on, j.token, (j.job).priority, j.attempts, (j.job).max_attempts, j.crashes,
               j.fate, (j.job).queue,
               (j.job).kind, (j.job).payload, (j.job).extras, (j.job).timeout,
               CASE j.fate WHEN 'failed' THEN error_code ELSE 'JOB_CANCELLED' END,
               CASE WHEN j.fate = 'failed'
                    THEN requeue.message || CASE WHEN lost THEN ' in its last attempt' ELSE '' END
                    WHEN lost THEN 'cancelled; ' || requeue.message ELSE 'cancelled before it started' END,
               j.ran_on
          FROM judged j
         WHERE j.fate <> 'ready'
    ), tried AS (
        INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code,
                                      error, ran_on)
        SELECT j.id, j.token, (j.job).attempts + 1, CASE WHEN lost THEN 'lost' ELSE 'abandoned' END,
               CASE WHEN lost THEN j.claimed_at END,
               clock_timestamp(), j.drop_on, error_code, coalesce(detail, requeue.message), j.ran_on
          FROM judged j
         WHERE j.fate = 'ready' AND (lost OR j.crashed)
    ), woken AS (
        SELECT jobherd.tell_waiters(array_agg(j.id || '=' || j.fate)) FROM judged j WHERE j.fate <> 'ready'
    )
    SELECT j.id, j.fate FROM judged j LEFT JOIN woken ON true;
END $$;
