-- Record the outcomes of a whole claim of which every job succeeded, as most do: settle_jobs.sql for this one
-- case, at half its cost. Run by the worker that holds the claim.
--
-- Fencing: `gone` finds the batch by worker and token, and only if it still holds as many jobs as are given.
-- Otherwise nothing is written, and settle_jobs.sql returns which of them were lost. A batch loses jobs, and
-- gains jobs only by claim_more.sql. So an equal number means the same jobs, unless an answer of claim_more.sql
-- was lost. Both sides keep the jobs in the order in which they were claimed. If they differ, the id becomes
-- null, which PostgreSQL rejects with the statement. Jobs with nothing to keep are not stored, if they are the
-- same jobs. Returns the number of jobs.
WITH gone AS MATERIALIZED (
    DELETE FROM jobherd.running
     WHERE child = %(child)s AND token = %(token)s AND cardinality(jobs) = cardinality(%(ids)s::bigint[])
    RETURNING token, jobs
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, result, ran_on, usage, progress)
    SELECT CASE WHEN j.id = (%(ids)s::bigint[])[n] THEN j.id END, created_at, run_at,
           statement_timestamp() - make_interval(secs => (%(ago)s::double precision[])[n] + (%(ran)s::double precision[])[n]),
           statement_timestamp() - make_interval(secs => (%(ago)s::double precision[])[n]),
           (SELECT (now() AT TIME ZONE 'UTC')::date) + (%(keeps)s::integer[])[n], g.token, priority, attempts + 1, max_attempts, crashes,
           'completed', queue, kind, payload, extras, timeout, result::json, %(ran_on)s::text, usage::jsonb, progress::jsonb
      FROM gone g CROSS JOIN LATERAL ROWS FROM (
           unnest(%(results)s::text[]), unnest(%(usages)s::text[]), unnest(%(progresses)s::text[]), unnest(g.jobs)
           ) WITH ORDINALITY AS j (result, usage, progress)  -- and a job's columns, by their names
     CROSS JOIN LATERAL (SELECT j.ordinality::integer) AS place (n)
     WHERE (%(keeps)s::integer[])[n] > 0 OR (extras).webhook IS NOT NULL OR (extras).flow IS NOT NULL OR j.id IS DISTINCT FROM (%(ids)s::bigint[])[n]
)
SELECT cardinality(%(ids)s::bigint[]) FROM gone
 -- Always true. It checks for waiting clients after the row is deleted, and not before: see schema/05_wake.sql.
 WHERE CASE WHEN pg_try_advisory_lock(1785684585, 1 + (pg_backend_pid() & 3))
            THEN pg_advisory_unlock(1785684585, 1 + (pg_backend_pid() & 3))
            ELSE jobherd.tell_waiters(ARRAY(SELECT id || '=completed' FROM unnest(%(ids)s::bigint[]) AS id)) END
