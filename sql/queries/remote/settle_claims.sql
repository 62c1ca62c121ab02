-- Record the outcomes of many small claims of which every job succeeded: settle_completed.sql for several claims at
-- once. Run by the gateway.
--
-- Parameters: one entry for each claim in children, tokens, sizes (its number of jobs) and ran_on (where it ran); one
-- entry for each job, claim after claim and in the order of each claim, in ids, ran, ago, keeps, results, usages and
-- progresses. The last three can be null as a whole. A claim that is given twice is settled once.
-- Columns: child, token. A claim that is missing in the answer was not settled, nothing of it was written, and
-- settle_jobs.sql returns which of its jobs were lost.
-- Fencing and the null id are as in settle_completed.sql: if the jobs of one claim differ, the whole statement is
-- rejected.
-- Order: the rows are locked by child and token. Two gateways that settle the same claims would deadlock otherwise.
-- Each row is found by an index probe under any plan: a join could read the whole table, with its dead rows.
WITH claim AS MATERIALIZED (
    SELECT child, token, size, ran_on, (sum(size) OVER (ROWS UNBOUNDED PRECEDING))::integer AS last
      FROM unnest(%(children)s::bigint[], %(tokens)s::bigint[], %(sizes)s::integer[], %(ran_on)s::text[]) AS c (child, token, size, ran_on)
), held AS MATERIALIZED (
    SELECT r.place, c.child, c.token, r.jobs, c.ran_on, c.last - c.size + 1 AS first, c.last
      FROM (SELECT DISTINCT ON (child, token) * FROM claim ORDER BY child, token) AS c
     CROSS JOIN LATERAL (
           SELECT ctid AS place, jobs FROM jobherd.running
            WHERE child = c.child AND token = c.token AND cardinality(jobs) = c.size
              FOR UPDATE
           ) AS r
), gone AS (
    DELETE FROM jobherd.running WHERE ctid = ANY (ARRAY(SELECT place FROM held))
), past AS (
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, max_attempts, crashes,
                                 state, queue, kind, payload, extras, timeout, result, ran_on, usage, progress)
    SELECT CASE WHEN j.id = j.job THEN j.id END, created_at, run_at, statement_timestamp() - make_interval(secs => ago + ran),
           statement_timestamp() - make_interval(secs => ago), (now() AT TIME ZONE 'UTC')::date + keep, g.token, priority,
           attempts + 1, max_attempts, crashes,
           'completed', queue, kind, payload, extras, timeout, result::json, g.ran_on, usage::jsonb, progress::jsonb
      FROM held g CROSS JOIN LATERAL ROWS FROM (
           unnest((%(ids)s::bigint[])[g.first:g.last]), unnest((%(ran)s::double precision[])[g.first:g.last]),
           unnest((%(ago)s::double precision[])[g.first:g.last]), unnest((%(keeps)s::integer[])[g.first:g.last]),
           unnest((%(results)s::text[])[g.first:g.last]), unnest((%(usages)s::text[])[g.first:g.last]),
           unnest((%(progresses)s::text[])[g.first:g.last]), unnest(g.jobs)
           ) AS j (job, ran, ago, keep, result, usage, progress)  -- and a job's columns, by their names
     WHERE keep > 0 OR (extras).webhook IS NOT NULL OR (extras).flow IS NOT NULL OR j.id IS DISTINCT FROM j.job
), told AS MATERIALIZED (
    -- Always true. It checks for waiting clients once, after all rows are locked, and not before: see schema/05_wake.sql.
    SELECT CASE WHEN claims = 0 THEN true
                WHEN pg_try_advisory_lock(1785684585, 1 + (pg_backend_pid() & 3))
                THEN pg_advisory_unlock(1785684585, 1 + (pg_backend_pid() & 3))
                ELSE jobherd.tell_waiters(ARRAY(SELECT j.id || '=completed' FROM held g CROSS JOIN LATERAL unnest(g.jobs) AS j)) END AS told
      FROM (SELECT count(*) AS claims FROM held) AS all_held
)
SELECT held.child, held.token FROM told CROSS JOIN held WHERE told.told
