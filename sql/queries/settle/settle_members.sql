-- Record the outcomes of a whole claim of which every job succeeded, and of which some belong to flows or are waited
-- for: settle_completed.sql, with the ends of these jobs. Run by the worker that holds the claim.
--
-- Cost: the ends of one flow are one row of `ends`. By the trigger on `history` they would be one row for each job. A job
-- of no flow has a row of its own, as the jobs that wait for it are found by it. Fencing is as in settle_completed.sql.
WITH gone AS MATERIALIZED (
    DELETE FROM jobherd.running
     WHERE child = %(child)s AND token = %(token)s AND cardinality(jobs) = cardinality(%(ids)s::bigint[])
    RETURNING token, jobs
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, result, ran_on, usage, progress,
                                 end_noted)
    SELECT CASE WHEN j.id = (%(ids)s::bigint[])[n] THEN j.id END, created_at, run_at,
           statement_timestamp() - make_interval(secs => (%(ago)s::double precision[])[n] + (%(ran)s::double precision[])[n]),
           statement_timestamp() - make_interval(secs => (%(ago)s::double precision[])[n]),
           (SELECT (now() AT TIME ZONE 'UTC')::date) + (%(keeps)s::integer[])[n], g.token, priority, attempts + 1, max_attempts, crashes,
           'completed', queue, kind, payload, extras, timeout, result::json, %(ran_on)s::text, usage::jsonb, progress::jsonb,
           CASE WHEN (extras).flow IS NOT NULL THEN true END
      FROM gone g CROSS JOIN LATERAL ROWS FROM (
           unnest(%(results)s::text[]), unnest(%(usages)s::text[]), unnest(%(progresses)s::text[]), unnest(g.jobs)
           ) WITH ORDINALITY AS j (result, usage, progress)  -- and a job's columns, by their names
     CROSS JOIN LATERAL (SELECT j.ordinality::integer) AS place (n)
     WHERE (%(keeps)s::integer[])[n] > 0 OR (extras).webhook IS NOT NULL OR (extras).flow IS NOT NULL OR j.id IS DISTINCT FROM (%(ids)s::bigint[])[n]
), noted AS (
    INSERT INTO jobherd.ends (flow, job, jobs, state, delta)
    SELECT m.flow, m.job, CASE WHEN m.job IS NULL THEN array_agg(m.id) END, 'completed', -count(*)
      FROM (SELECT (j.extras).flow, j.id, CASE WHEN (j.extras).flow = 0 THEN j.id END AS job
              FROM gone g CROSS JOIN LATERAL unnest(g.jobs) AS j WHERE (j.extras).flow IS NOT NULL) AS m
     GROUP BY m.flow, m.job
)
SELECT cardinality(%(ids)s::bigint[]) FROM gone
 -- Always true. It checks for waiting clients after the row is deleted, and not before: see schema/05_wake.sql.
 WHERE CASE WHEN pg_try_advisory_lock(1785684585, 1 + (pg_backend_pid() & 3))
            THEN pg_advisory_unlock(1785684585, 1 + (pg_backend_pid() & 3))
            ELSE jobherd.tell_waiters(ARRAY(SELECT id || '=completed' FROM unnest(%(ids)s::bigint[]) AS id)) END
