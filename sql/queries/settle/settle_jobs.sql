-- Record the outcomes of some jobs of a claimed batch, each in the table of its new state. Run by the worker
-- that holds the claim, or by its supervisor once the worker is dead.
--
-- Without %(outcomes)s all of them are 'ok'. Fencing: `held` finds the batch by worker and token or finds
-- nothing, and then nothing is written. Jobs of the batch that are not named stay claimed. The row is
-- updated, not deleted and inserted again: worker and supervisor may both settle, and the one that waited must
-- still find the row. It finds an updated row by its key; an inserted one is not in its snapshot. Returns the ids
-- that were settled: a missing id means that its claim was lost.
-- A job that returns to the queue and whose id a waiting job has gets another id, as in requeue_child.sql.
WITH said AS MATERIALIZED (
    SELECT job, coalesce(outcome, 'ok') AS outcome, delay, result, code, error, traceback, ran, ago, usage, progress, post_mortem, crashed, keep
      FROM unnest(%(ids)s::bigint[], %(outcomes)s::text[], %(delays)s::double precision[], %(results)s::text[], %(codes)s::text[],
                  %(errors)s::text[], %(tracebacks)s::text[], %(ran)s::double precision[], %(ago)s::double precision[],
                  %(usages)s::text[], %(progresses)s::text[], %(post_mortems)s::text[], %(crashes)s::smallint[], %(keeps)s::integer[])
        AS s (job, outcome, delay, result, code, error, traceback, ran, ago, usage, progress, post_mortem, crashed, keep)
), held AS MATERIALIZED (
    SELECT token, jobs FROM jobherd.running WHERE child = %(child)s AND token = %(token)s FOR UPDATE
), rest AS MATERIALIZED (
    SELECT (SELECT array_agg(j ORDER BY j.priority, j.id) FROM unnest(h.jobs) AS j WHERE j.id <> ALL (%(ids)s::bigint[])) AS jobs
      FROM held h
), kept AS (
    UPDATE jobherd.running SET jobs = rest.jobs FROM rest
     WHERE running.child = %(child)s AND running.token = %(token)s AND rest.jobs IS NOT NULL
), gone AS (
    DELETE FROM jobherd.running USING rest
     WHERE running.child = %(child)s AND running.token = %(token)s AND rest.jobs IS NULL
), done AS MATERIALIZED (
    SELECT j AS job, j.id, s.delay, s.result, s.code, s.error, s.traceback, s.usage, s.progress, s.post_mortem, s.keep, h.token,
           j.crashes + coalesce(s.crashed, 0::smallint) AS crashes,
           -- The attempt does not count if the job did not start or only asked for more time. A suspension is no attempt.
           j.attempts + CASE WHEN s.ran IS NULL OR s.outcome IN ('snoozed', 'abandoned', 'suspended') THEN 0 ELSE 1 END AS attempts,
           -- Cost: finished jobs do not check for a request to cancel.
           CASE WHEN s.outcome NOT IN ('retry', 'snoozed', 'abandoned', 'suspended') THEN s.outcome
                WHEN EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) THEN 'cancelled' ELSE s.outcome END AS outcome,
           -- Durations come from the worker's monotonic clock, timestamps from the database: one reading of its
           -- clock, or a job of a few microseconds would start after its end.
           statement_timestamp() - make_interval(secs => coalesce(s.ago, 0)) AS finished_at,
           statement_timestamp() - make_interval(secs => coalesce(s.ago, 0) + s.ran) AS started_at
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j JOIN said s ON s.job = j.id
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, result, error_code, error, traceback, ran_on, usage, post_mortem, progress)
    SELECT id, (job).created_at, (job).run_at, started_at, finished_at, (now() AT TIME ZONE 'UTC')::date + coalesce(keep, 30), token,
           (job).priority, attempts, (job).max_attempts, crashes,
           CASE outcome WHEN 'ok' THEN 'completed' WHEN 'poison' THEN 'failed' ELSE outcome END,
           (job).queue, (job).kind, (job).payload, (job).extras, (job).timeout, result::json, code, error, traceback, %(ran_on)s::text, usage::jsonb, post_mortem::jsonb, progress::jsonb
      FROM done
     WHERE (outcome = 'ok' AND (keep IS DISTINCT FROM 0 OR ((job).extras).webhook IS NOT NULL OR ((job).extras).flow IS NOT NULL)) OR outcome IN ('failed', 'poison', 'cancelled', 'expired')
), back AS MATERIALIZED (
    SELECT coalesce(delay > 0, false) AS later,
           jsonb_populate_record(job, jsonb_build_object(
               'id', CASE WHEN CASE WHEN delay > 0 THEN EXISTS (SELECT FROM jobherd.scheduled w WHERE w.id = done.id)
                                    ELSE EXISTS (SELECT FROM jobherd.ready w WHERE w.id = done.id) END
                          THEN nextval('jobherd.job_ids') ELSE id END,
               'run_at', clock_timestamp() + make_interval(secs => CASE WHEN delay > 0 THEN delay ELSE 0 END),
               'last_error', CASE WHEN outcome = 'retry' OR code IS NOT NULL
                                  THEN jsonb_build_object('code', code, 'message', error) ELSE (job).last_error END,
               'attempts', attempts, 'crashes', crashes, 'alone', false)) AS job
      FROM done
     WHERE outcome IN ('retry', 'snoozed', 'abandoned', 'suspended')
), later AS (
    INSERT INTO jobherd.scheduled SELECT (job).* FROM back WHERE later
), again AS (
    INSERT INTO jobherd.ready SELECT (job).* FROM back WHERE NOT later
), tried AS (
    INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback, ran_on,
                                  usage, post_mortem, kind)
    SELECT id, token, CASE WHEN outcome IN ('snoozed', 'abandoned') THEN attempts + 1 ELSE attempts END, outcome, started_at, finished_at,
           (now() AT TIME ZONE 'UTC')::date + coalesce(keep, 30), code, error, traceback, %(ran_on)s::text, usage::jsonb, post_mortem::jsonb, (job).kind
      FROM done
     WHERE outcome IN ('retry', 'snoozed', 'abandoned') AND (started_at IS NOT NULL OR code = 'WORKER_CRASHED')
), logged AS (
    INSERT INTO jobherd.logs (job, token, attempt, at, drop_on, output, entries)
    SELECT d.id, d.token, CASE WHEN d.outcome IN ('snoozed', 'abandoned', 'suspended') THEN d.attempts + 1 ELSE d.attempts END, d.finished_at,
           (now() AT TIME ZONE 'UTC')::date + coalesce(d.keep, 30), l.log ->> 'output', l.log -> 'entries'
      FROM unnest(%(ids)s::bigint[], %(logs)s::jsonb[]) AS l (job, log) JOIN done d ON d.id = l.job
     WHERE l.log IS NOT NULL AND NOT (d.outcome = 'ok' AND d.keep IS NOT DISTINCT FROM 0)
    ON CONFLICT DO NOTHING
), told AS MATERIALIZED (
    -- Order: only after the row is locked, see schema/05_wake.sql.
    SELECT jobherd.tell_waiters(ARRAY(
               SELECT id || '=' || CASE outcome WHEN 'ok' THEN 'completed' WHEN 'poison' THEN 'failed' ELSE outcome END
                 FROM done WHERE outcome IN ('ok', 'failed', 'poison', 'cancelled', 'expired')))
      FROM held
     WHERE CASE WHEN pg_try_advisory_lock(1785684585, 1 + (pg_backend_pid() & 3))
                THEN NOT pg_advisory_unlock(1785684585, 1 + (pg_backend_pid() & 3)) ELSE true END
)
SELECT id FROM done LEFT JOIN told ON true
