-- Reclaim what other supervisors left: those whose lease has expired, and those of this host that are known to
-- be dead (%(dead)s). Run by every supervisor at each renewal of its lease.
--
-- The attempt stays counted, no crash is counted, and each job is next claimed alone: if it killed its whole
-- host, it must not cost the jobs claimed with it a second time. A job without attempts left fails here, or
-- nothing would ever end it. The DELETE itself checks the lease again, so a renewal that comes first wins. After
-- PostgreSQL was away, no supervisor is reclaimed before all had one whole lease to renew.
-- A last renewal in the future was before the server's clock was set back: living supervisors have renewed
-- since, and a dead host's lease would last for as long as the clock has jumped. Leases are compared with the
-- time that the caller's renewal returned (%(clock)s, seconds; NULL: the current time): after a later jump of
-- the clock, every lease would count as expired. What was claimed before the clock was set back began in the
-- future; no row of the history may end before it began.
-- Order: like every statement it names history before attempts, because the maintenance process locks them in
-- that order.
-- A claim is locked by the open transaction of its job. The session of that transaction is ended here, and the
-- job is left to requeue_orphans.sql, shortly after. Waiting for it would delay all others, and the server may
-- take hours to notice that a host is dead. If this role must not end that session, the job waits until the
-- server ends it. requeue_orphans.sql also handles a claim of a job whose id a ready job has: the server would
-- reject it, and all others with it. If two jobs return with one id, the second one gets another, as in a claim
-- that parks.
WITH lapsed AS (
    DELETE FROM jobherd.supervisors
     WHERE id <> %(supervisor)s
       AND (id = ANY (%(dead)s::bigint[])
            OR ((lease_until < coalesce(to_timestamp(%(clock)s::double precision), clock_timestamp())
                 OR beat_at > coalesce(to_timestamp(%(clock)s::double precision), clock_timestamp())
                              + make_interval(secs => %(lease)s::double precision))
                AND %(patient)s::boolean
                AND pg_postmaster_start_time() NOT BETWEEN clock_timestamp() - make_interval(secs => %(lease)s::double precision)
                                                       AND clock_timestamp()))
    RETURNING id, host
), gone AS (
    DELETE FROM jobherd.children c USING lapsed l WHERE c.supervisor = l.id RETURNING c.id, l.host || '/' || c.pid AS ran_on, c.transaction_pid, c.transaction_started
), ended AS MATERIALIZED (
    SELECT count(jobherd.end_session(g.transaction_pid, g.transaction_started)) AS sessions FROM gone g WHERE g.transaction_pid IS NOT NULL
), free AS MATERIALIZED (
    SELECT r.child, r.token, g.ran_on
      FROM jobherd.running r JOIN gone g ON g.id = r.child
     WHERE (SELECT sessions FROM ended) >= 0
       AND NOT EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE (SELECT true FROM ONLY jobherd.ready w WHERE w.id = j.id))
       FOR UPDATE OF r SKIP LOCKED
), held AS (
    DELETE FROM jobherd.running r USING free f WHERE r.child = f.child AND r.token = f.token
    RETURNING r.token, r.claimed_at, r.jobs, f.ran_on
), job AS MATERIALIZED (
    SELECT j.*, h.token, h.claimed_at, h.ran_on, coalesce(k.keep_failed, 30) AS keep,
           CASE WHEN EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) THEN 'cancelled'
                WHEN j.attempts + 1 >= coalesce(j.max_attempts, k.max_attempts, 5) THEN 'failed'
                ELSE 'ready' END AS fate
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j LEFT JOIN jobherd.kinds k ON k.name = j.kind
), back AS (
    INSERT INTO jobherd.ready (id, created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                               queue, kind, payload, extras)
    SELECT CASE WHEN row_number() OVER (PARTITION BY id ORDER BY token) = 1 THEN id ELSE nextval('jobherd.job_ids') END,
           created_at, run_at, expires_at, timeout, jsonb_build_object('code', 'WORKER_LOST', 'message', 'its supervisor was lost'),
           priority, attempts + 1, max_attempts, crashes, true, queue, kind, payload, extras
      FROM job
     WHERE fate = 'ready'
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, error_code, error, ran_on)
    SELECT id, created_at, run_at, least(claimed_at, statement_timestamp()), clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + keep, token, priority,
           attempts + 1, max_attempts, crashes, fate, queue, kind, payload, extras, timeout, CASE fate WHEN 'failed' THEN 'WORKER_LOST' ELSE 'JOB_CANCELLED' END,
           CASE fate WHEN 'failed' THEN 'its supervisor was lost in its last attempt' ELSE 'cancelled; its supervisor was lost' END, ran_on
      FROM job
     WHERE fate <> 'ready'
), tried AS (
    INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, ran_on)
    SELECT id, token, attempts + 1, 'lost', claimed_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + keep, 'WORKER_LOST',
           'its supervisor was lost: the lease lapsed or the process died', ran_on
      FROM job
     WHERE fate = 'ready'
), told AS (
    SELECT jobherd.tell_waiters(array_agg(id || '=' || fate)) FROM job WHERE fate <> 'ready'
)
SELECT (SELECT count(*) FROM lapsed) AS supervisors, (SELECT count(*) FROM job) AS jobs, (SELECT string_agg(host, ', ') FROM lapsed) AS hosts FROM told
