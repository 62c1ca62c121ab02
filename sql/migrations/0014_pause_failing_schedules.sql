-- A schedule that pauses itself: with the option pause_after, so many failed runs in a row pause it.
--
-- Maintenance processes count them from `ticks` and the history, before they decide an instant of such a schedule, and
-- each 30 s. Jobs have no part in it, so a job without a schedule, and a schedule without the option, cost nothing.

ALTER TABLE jobherd.schedules ADD COLUMN resumed_at timestamptz;

-- Runs from before a pause do not count after it.
CREATE FUNCTION jobherd.note_resumption()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.resumed_at := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER note_resumption BEFORE UPDATE OF paused_at ON jobherd.schedules FOR EACH ROW
    WHEN (OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL)
    EXECUTE FUNCTION jobherd.note_resumption();

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

-- Returns the options as the table stores them: durations in seconds, times with their zone. A null removes one.
CREATE FUNCTION jobherd.check_schedule_options(options jsonb)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    known CONSTANT text[] := '{queue,priority,misfire,misfire_most,misfire_within,overlap,jitter,starts_at,ends_at,good_for,'
                             'pause_after}';
    one   record;
    made  jsonb := '{}';
    value jsonb;
    span  double precision;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.schedule: options must be a JSON object, not a %', jsonb_typeof(options)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR one IN SELECT o.key, o.value, o.value #>> '{}' AS written FROM jsonb_each(options) AS o ORDER BY o.key LOOP
        IF one.key <> ALL (known) THEN
            RAISE EXCEPTION 'jobherd.schedule: unknown option "%"', left(one.key, 120)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Known options: ' || array_to_string(known, ', ') || '.';
        END IF;
        BEGIN
            value := CASE
                WHEN one.written IS NULL THEN 'null'::jsonb
                WHEN one.key IN ('priority', 'misfire_most', 'pause_after') THEN to_jsonb(one.written::smallint)
                WHEN one.key IN ('starts_at', 'ends_at') THEN to_jsonb(one.written::timestamptz)
                WHEN one.key IN ('misfire_within', 'jitter', 'good_for') THEN to_jsonb(jobherd.seconds_of(one.written))
                ELSE to_jsonb(one.written) END;
            IF one.key = 'queue' AND one.written !~ '^[a-z0-9_][a-z0-9_.-]{0,62}$'
               OR one.key = 'misfire' AND one.written NOT IN ('skip', 'one', 'all')
               OR one.key = 'overlap' AND one.written NOT IN ('allow', 'skip', 'queue', 'replace')
               OR one.key IN ('misfire_most', 'pause_after') AND one.written::smallint < 1
               OR one.key IN ('starts_at', 'ends_at') AND NOT isfinite(one.written::timestamptz) THEN
                RAISE EXCEPTION 'not allowed';
            END IF;
        EXCEPTION WHEN data_exception OR raise_exception THEN
            RAISE EXCEPTION 'jobherd.schedule: option "%" has a bad value %: %', one.key, left(one.value::text, 120), SQLERRM
                USING ERRCODE = 'invalid_parameter_value';
        END;
        made := made || jsonb_build_object(one.key, value);
    END LOOP;
    RETURN made;
END $$;

COMMENT ON FUNCTION jobherd.schedule(text, text, text, text, text, jsonb, jsonb, text, text) IS
    'Makes or edits a schedule of periodic jobs: SELECT jobherd.schedule(''feed-eu'', ''feed:poll'', every => ''15 '
    'minutes''); What is not given stays as it is. Options: queue, priority, misfire, misfire_most, misfire_within, '
    'overlap, jitter, starts_at, ends_at, good_for, pause_after. Returns created, changed or unchanged.';
