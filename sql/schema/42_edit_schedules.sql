-- What users do with schedules, by SQL, by the command line and on the dashboard: make, edit, delete. Each function writes
-- an audit entry. A name that does not exist is an error: a misspelled one would change nothing unnoticed.

CREATE FUNCTION jobherd.find_schedule(name text)
RETURNS jobherd.schedules
LANGUAGE plpgsql
AS $$
DECLARE
    one jobherd.schedules;
BEGIN
    SELECT s.* INTO one FROM jobherd.schedules s WHERE s.name = find_schedule.name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'jobherd: there is no schedule %', coalesce(quote_literal(left(name, 120)), 'null')
            USING ERRCODE = 'no_data_found', HINT = '`jobherd schedules` lists them.';
    END IF;
    RETURN one;
END $$;

-- Returns a number of seconds, or an interval in seconds.
CREATE FUNCTION jobherd.seconds_of(span text)
RETURNS double precision
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    seconds double precision;
BEGIN
    seconds := CASE WHEN span ~ '^[0-9.]+$' THEN span::double precision ELSE extract(epoch FROM span::interval) END;
    IF seconds < 0 OR seconds > 3e9 THEN
        RAISE EXCEPTION 'must be from 0 to 3e9 seconds';
    END IF;
    RETURN seconds;
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

CREATE FUNCTION jobherd.schedule(
    name text, kind text DEFAULT NULL, cron text DEFAULT NULL, every text DEFAULT NULL, tz text DEFAULT NULL,
    payload jsonb DEFAULT NULL, options jsonb DEFAULT NULL, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    given   CONSTANT jsonb := jobherd.check_schedule_options(coalesce(options, '{}'));
    who     CONSTANT text := left(coalesce(nullif(actor, ''), session_user), 200);
    period  double precision;
    old     jobherd.schedules;
    made    jobherd.schedules;
    moved   boolean;
    is_new  boolean;
BEGIN
    IF name IS NULL OR name !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(name) > 100 THEN
        RAISE EXCEPTION 'jobherd.schedule: name % is not a name like "feed-eu"', coalesce(quote_literal(left(name, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Lower-case letters, digits and _ . : - , at most 100 characters.';
    ELSIF cron IS NOT NULL AND every IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.schedule: cron and every exclude each other' USING ERRCODE = 'invalid_parameter_value';
    ELSIF cron !~ '^\s*(@[a-z]+|\S+(\s+\S+){4})\s*$' THEN
        RAISE EXCEPTION 'jobherd.schedule: cron % does not have 5 fields', quote_literal(left(cron, 120))
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Minute, hour, day of month, month and day of week, such as 0 3 * * MON-FRI.';
    ELSIF jsonb_typeof(payload) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.schedule: payload must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF every IS NOT NULL THEN
        BEGIN
            period := jobherd.seconds_of(every);
            IF period < 1 THEN RAISE EXCEPTION 'must be at least 1 second'; END IF;
        EXCEPTION WHEN data_exception OR raise_exception THEN
            RAISE EXCEPTION 'jobherd.schedule: every % is not a period: %', quote_literal(left(every, 120)), SQLERRM
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Seconds or an interval, such as 15 minutes.';
        END;
    END IF;
    SELECT s.* INTO old FROM jobherd.schedules s WHERE s.name = schedule.name FOR UPDATE;
    is_new := NOT FOUND;
    made := old;
    made.kind := coalesce(kind, old.kind);
    made.cron := CASE WHEN cron IS NOT NULL THEN cron WHEN every IS NULL THEN old.cron END;
    made.every := CASE WHEN every IS NOT NULL THEN period WHEN cron IS NULL THEN old.every END;
    made.tz := coalesce(tz, old.tz, 'UTC');
    made.payload := coalesce(payload, old.payload, '{}');
    made.options := jsonb_strip_nulls(coalesce(old.options, '{}') || given);
    IF made.kind IS NULL OR num_nonnulls(made.cron, made.every) = 0 THEN
        RAISE EXCEPTION 'jobherd.schedule: a new schedule needs a kind, and cron or every'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF is_new THEN
        INSERT INTO jobherd.schedules (name, kind, cron, every, tz, payload, options, edited_by, edited_at)
        VALUES (schedule.name, made.kind, made.cron, made.every, made.tz, made.payload, made.options, who, clock_timestamp());
    ELSE
        moved := jobherd.is_other_timing(old, made.cron, made.every, made.tz, made.options);
        IF NOT moved AND (old.kind, old.payload, old.options) = (made.kind, made.payload, made.options) THEN
            RETURN 'unchanged';
        END IF;
        PERFORM jobherd.change_timing(old, moved, who);
        UPDATE jobherd.schedules s
           SET kind = made.kind, cron = made.cron, every = made.every, tz = made.tz, payload = made.payload,
               options = made.options, edited_by = who, edited_at = clock_timestamp(), retired_at = NULL
         WHERE s.name = schedule.name;
    END IF;
    PERFORM jobherd.note_unless_noted(who, 'schedule', jsonb_strip_nulls(jsonb_build_object(
        'schedule', schedule.name, 'kind', made.kind, 'cron', made.cron, 'every', made.every, 'tz', made.tz,
        'options', made.options)), reason);
    RETURN CASE WHEN is_new THEN 'created' ELSE 'changed' END;
END $$;
COMMENT ON FUNCTION jobherd.schedule(text, text, text, text, text, jsonb, jsonb, text, text) IS
    'Makes or edits a schedule of periodic jobs: SELECT jobherd.schedule(''feed-eu'', ''feed:poll'', every => ''15 '
    'minutes''); What is not given stays as it is. Options: queue, priority, misfire, misfire_most, misfire_within, '
    'overlap, jitter, starts_at, ends_at, good_for, pause_after. Returns created, changed or unchanged.';

-- Increments the revision, and lets a maintenance process plan again if the timing was changed. An instant that is due
-- and that no process has decided yet is stored as edited.
CREATE FUNCTION jobherd.change_timing(old jobherd.schedules, moved boolean, who text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF moved AND old.next_at <= clock_timestamp() AND old.plan_from IS NULL AND old.paused_at IS NULL
       AND old.retired_at IS NULL THEN
        INSERT INTO jobherd.ticks (schedule, at, decided, by) VALUES (old.name, old.next_at, 'edited', who)
        ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
    END IF;
    UPDATE jobherd.schedules s
       SET revision = s.revision + 1, error = CASE WHEN moved THEN NULL ELSE s.error END,
           plan_from = CASE WHEN moved OR s.retired_at IS NOT NULL THEN greatest(s.last_at, clock_timestamp())
                            ELSE s.plan_from END
     WHERE s.name = old.name;
END $$;

CREATE FUNCTION jobherd.unschedule(name text, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM jobherd.schedules s WHERE s.name = unschedule.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM jobherd.note_unless_noted(actor, 'unschedule', jsonb_build_object('schedule', name), reason);
    RETURN true;
END $$;
COMMENT ON FUNCTION jobherd.unschedule(text, text, text) IS
    'Deletes a schedule; its jobs and instants stay. Returns whether there was one. A schedule that a handler declares '
    'comes back with the next worker: pause it instead.';

CREATE FUNCTION jobherd.reset_schedule(name text, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    old CONSTANT jobherd.schedules := jobherd.find_schedule(name);
BEGIN
    IF old.declared IS NULL THEN
        RAISE EXCEPTION 'jobherd.reset_schedule: no handler declares schedule %', old.name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Edit it, or delete it with jobherd.unschedule.';
    END IF;
    PERFORM jobherd.change_timing(old, jobherd.is_other_timing(
        old, old.declared ->> 'cron', (old.declared ->> 'every')::double precision, old.declared ->> 'tz',
        old.declared -> 'options'), left(coalesce(nullif(actor, ''), session_user), 200));
    UPDATE jobherd.schedules s
       SET kind = s.declared ->> 'kind', cron = s.declared ->> 'cron', every = (s.declared ->> 'every')::double precision,
           tz = s.declared ->> 'tz', payload = s.declared -> 'payload', options = s.declared -> 'options',
           edited_by = NULL, edited_at = NULL
     WHERE s.name = old.name;
    PERFORM jobherd.note_unless_noted(actor, 'reset schedule', jsonb_build_object('schedule', old.name), reason);
END $$;
COMMENT ON FUNCTION jobherd.reset_schedule(text, text, text) IS
    'Drops what users have edited in a schedule: it is again what its handler declares.';
