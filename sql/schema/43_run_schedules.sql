-- Pauses and runs of schedules: by users, and of schedules that pause themselves.
--
-- With the option pause_after, so many failed runs in a row pause a schedule. Maintenance processes count them from `ticks`
-- and the history, before they decide an instant of such a schedule, and each 30 s. Jobs have no part in it, so a job
-- without a schedule, and a schedule without the option, cost nothing.

CREATE FUNCTION jobherd.pause_schedule(
    name text, reason text DEFAULT NULL, until timestamptz DEFAULT NULL, actor text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    old CONSTANT jobherd.schedules := jobherd.find_schedule(name);
    who CONSTANT text := left(coalesce(nullif(actor, ''), session_user), 200);
BEGIN
    UPDATE jobherd.schedules s
       SET paused_at = coalesce(s.paused_at, clock_timestamp()), paused_by = who, pause_reason = left(reason, 2000),
           resume_at = until, revision = s.revision + 1
     WHERE s.name = old.name;
    PERFORM jobherd.note_unless_noted(who, 'pause schedule', jsonb_strip_nulls(jsonb_build_object(
        'schedule', old.name, 'until', until)), reason);
END $$;
COMMENT ON FUNCTION jobherd.pause_schedule(text, text, timestamptz, text) IS
    'Pauses a schedule: its instants do not run, and are noted as paused when it is resumed, at the latest at "until".';

CREATE FUNCTION jobherd.resume_schedule(name text, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    old CONSTANT jobherd.schedules := jobherd.find_schedule(name);
BEGIN
    IF old.paused_at IS NULL THEN
        RETURN false;
    END IF;
    UPDATE jobherd.schedules s
       SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, resume_at = NULL, revision = s.revision + 1,
           plan_from = CASE WHEN s.next_at <= clock_timestamp() THEN clock_timestamp() ELSE s.plan_from END,
           gap_from = CASE WHEN s.next_at <= clock_timestamp() THEN s.next_at ELSE s.gap_from END,
           gap_why = CASE WHEN s.next_at <= clock_timestamp() THEN 'paused' ELSE s.gap_why END
     WHERE s.name = old.name;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    PERFORM jobherd.note_unless_noted(actor, 'resume schedule', jsonb_build_object('schedule', old.name), reason);
    RETURN true;
END $$;
COMMENT ON FUNCTION jobherd.resume_schedule(text, text, text) IS
    'Ends the pause of a schedule. It continues with the next instant. Returns whether it was paused.';

CREATE FUNCTION jobherd.run_schedule(name text, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    old CONSTANT jobherd.schedules := jobherd.find_schedule(name);
    at  CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF cardinality(old.asked) >= 100 THEN
        RAISE EXCEPTION 'jobherd.run_schedule: 100 runs of schedule % wait already', old.name
            USING ERRCODE = 'program_limit_exceeded', HINT = 'No maintenance process takes them: jobherd fleet lists the supervisors.';
    END IF;
    UPDATE jobherd.schedules s SET asked = s.asked || at, revision = s.revision + 1 WHERE s.name = old.name;
    PERFORM jobherd.note_unless_noted(actor, 'run schedule', jsonb_build_object('schedule', old.name), reason);
    RETURN at;
END $$;
COMMENT ON FUNCTION jobherd.run_schedule(text, text, text) IS
    'Runs a schedule once, now, also if it is paused. A maintenance process enqueues the job; its row in jobherd.ticks '
    'has the returned time.';

CREATE FUNCTION jobherd.backfill_schedule(
    name text, from_at timestamptz, to_at timestamptz, parallel integer DEFAULT 1, actor text DEFAULT NULL,
    reason text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    old CONSTANT jobherd.schedules := jobherd.find_schedule(name);
BEGIN
    IF (parallel BETWEEN 1 AND 1000 AND from_at <= to_at AND to_at <= clock_timestamp()
        AND from_at >= clock_timestamp() - interval '30 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd.backfill_schedule: from % to % with % jobs at once is not possible', from_at, to_at, parallel
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'From at most 30 days ago to at most now, with 1 to 1000 jobs at once.';
    ELSIF old.backfill IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.backfill_schedule: schedule % already has a backfill, up to %', old.name, old.backfill ->> 'to'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Wait until it has ended.';
    END IF;
    UPDATE jobherd.schedules s
       SET backfill = jsonb_build_object('from', from_at, 'to', to_at, 'parallel', parallel), revision = s.revision + 1
     WHERE s.name = old.name;
    PERFORM jobherd.note_unless_noted(actor, 'backfill schedule', jsonb_build_object(
        'schedule', old.name, 'from', from_at, 'to', to_at, 'parallel', parallel), reason);
END $$;
COMMENT ON FUNCTION jobherd.backfill_schedule(text, timestamptz, timestamptz, integer, text, text) IS
    'Runs the instants of a schedule in this time that have no job yet, at most so many jobs at once.';

-- Returns the failed jobs since the last run that did not fail, latest first, at most so many. Unfinished, canceled
-- and expired runs are left out. A finished job that the history does not keep counts as one that did not fail.
CREATE FUNCTION jobherd.failed_runs(schedule text, since timestamptz, most integer)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    failed bigint[] := '{}';
    run    record;
BEGIN
    FOR run IN
        SELECT t.job, (SELECT j.state FROM jobherd.jobs j WHERE j.id = t.job LIMIT 1) AS state
          FROM (SELECT o.job, o.at, o.noted_at
                  FROM jobherd.ticks o
                 WHERE o.schedule = failed_runs.schedule AND o.decided IN ('ran', 'manual')
                 ORDER BY o.at DESC
                 LIMIT failed_runs.most + 1000) AS t  -- otherwise all runs from before a pause would be read
         WHERE failed_runs.since IS NULL OR t.noted_at > failed_runs.since
         ORDER BY t.at DESC
    LOOP
        CONTINUE WHEN run.state NOT IN ('completed', 'failed');
        EXIT WHEN run.state IS DISTINCT FROM 'failed';
        failed := failed || run.job;
        EXIT WHEN cardinality(failed) >= failed_runs.most;
    END LOOP;
    RETURN failed;
END $$;

-- Pauses the schedules of these names, or all, whose last pause_after runs failed. Returns those. It runs as the owner
-- because maintenance processes have no other reason to write this entry into the audit log.
CREATE FUNCTION jobherd.pause_failing(names text[])
RETURNS TABLE (schedule text, reason text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    one    record;
    failed bigint[];
BEGIN
    FOR one IN
        SELECT s.name, s.resumed_at, (s.options ->> 'pause_after')::integer AS most
          FROM jobherd.schedules s
         WHERE s.options ? 'pause_after' AND s.paused_at IS NULL AND s.retired_at IS NULL
           AND (names IS NULL OR s.name = ANY (names))
           AND cardinality(jobherd.failed_runs(s.name, s.resumed_at, (s.options ->> 'pause_after')::integer))
               >= (s.options ->> 'pause_after')::integer
         ORDER BY s.name
           FOR UPDATE SKIP LOCKED
    LOOP
        -- A statement that begins after the lock was had: a user may have retried the job.
        failed := jobherd.failed_runs(one.name, one.resumed_at, one.most);
        CONTINUE WHEN cardinality(failed) < one.most;
        SELECT one.name, format('%s failed %s in a row, the last one is job %s%s', one.most,
                                CASE one.most WHEN 1 THEN 'run' ELSE 'runs' END, failed[1], ' (' || j.error_code || ')')
          INTO schedule, reason
          FROM (SELECT) AS nothing
               LEFT JOIN LATERAL (SELECT j.error_code FROM jobherd.jobs j WHERE j.id = failed[1] LIMIT 1) AS j ON true;
        UPDATE jobherd.schedules s
           SET paused_at = clock_timestamp(), paused_by = 'maintenance', pause_reason = reason, resume_at = NULL,
               revision = s.revision + 1
         WHERE s.name = one.name;
        INSERT INTO jobherd.audit (actor, role, action, target, reason)
        VALUES ('maintenance', session_user, 'pause schedule', jsonb_build_object('schedule', one.name), pause_failing.reason);
        RETURN NEXT;
    END LOOP;
END $$;
