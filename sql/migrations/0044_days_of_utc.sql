-- The day from which what is over may go is one of UTC, for who writes it and for who drops it. It was the session's: a row that a worker in Honolulu had
-- written to be kept for a day was dropped at once by a keeper in Tokyo, whose day it was already.
CREATE OR REPLACE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                did := true;
                answer := 'cancelling';
                PERFORM jobherd.notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30), error_code, error, traceback,
                       ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.keep_partitions(ahead integer, most integer DEFAULT NULL::integer, OUT made integer, OUT dropped integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    parent text;
    part   text;
    day    date;
    today  CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another keeper is at it
    END IF;
    SET LOCAL lock_timeout = '2s';  -- attaching waits for readers of the default partition; they must not queue behind us
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- A settlement that has chosen the default partition for its row, and waits for the one that is being attached, would be
        -- refused in the end: the default partition may not hold such a row any more. And a reader that has looked which partitions there
        -- are, and waits for the default one, would miss what has moved out of it: a job that is over would not exist. So nobody uses the
        -- parent meanwhile.
        IF EXISTS (SELECT FROM generate_series(1, ahead) AS d
                    WHERE to_regclass('jobherd.' || parent || '_' || to_char(today + d, 'YYYYMMDD')) IS NULL) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT today + d FROM generate_series(1, ahead) AS d LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('jobherd.' || part) IS NULL THEN
                IF made >= most THEN
                    RETURN;
                END IF;
                -- Rows that fell into the default partition while nobody kept house move to where they belong: the
                -- partition could not be attached over them.
                EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
                EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *) INSERT INTO jobherd.%I SELECT * FROM moved',
                               parent || '_default', day, part);
                EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)', parent, part, day, day + 1);
                PERFORM jobherd.leave_first_range(('jobherd.' || part)::regclass);
                made := made + 1;
            END IF;
        END LOOP;
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = ('jobherd.' || parent)::regclass
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) <= to_char(today, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on <= %L', parent || '_default', today);
    END LOOP;
END $_$;
