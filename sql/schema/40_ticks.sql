-- What maintenance processes do with schedules: they plan and decide the instants, and enqueue the jobs.

-- Returns whether a job waits or runs.
CREATE FUNCTION jobherd.is_unfinished(job_id bigint)
RETURNS boolean
LANGUAGE sql
AS $$
    SELECT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = job_id)
        OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = job_id)
        OR EXISTS (SELECT FROM jobherd.parked p WHERE p.id = job_id)
        OR EXISTS (SELECT FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j WHERE j.id = job_id)
$$;

-- Returns the seconds until a maintenance process must check the schedules: infinity if none is to be due, null if
-- there are none. A run that is held, and a backfill that may continue, are checked each second.
CREATE FUNCTION jobherd.schedules_due_in()
RETURNS double precision
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN count(*) > 0 THEN coalesce(
               extract(epoch FROM min(CASE
                   WHEN s.asked <> '{}' THEN clock_timestamp()
                   WHEN s.paused_at IS NOT NULL OR s.retired_at IS NOT NULL THEN s.resume_at
                   WHEN s.plan_from IS NOT NULL THEN clock_timestamp()
                   WHEN s.held IS NOT NULL OR s.backfill IS NOT NULL
                   THEN least(s.next_at, clock_timestamp() + interval '1 s')
                   ELSE s.next_at END) - clock_timestamp())::double precision, 'Infinity') END
      FROM jobherd.schedules s
$$;

-- Stores the next instants of schedules that were made, edited, resumed or declared again. plans: {"name",
-- "revision", "next", "error", "gap_at", "gap_missed"} each; the last two: of the stretch that did not run.
CREATE FUNCTION jobherd.plan_schedules(plans jsonb, planned_with text, by text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT s.name, s.gap_from, s.gap_why, p.next, p.error, p.gap_at, p.gap_missed
          FROM jsonb_to_recordset(plans) AS p (name text, revision bigint, next timestamptz, error text,
                                               gap_at timestamptz, gap_missed bigint)
          JOIN jobherd.schedules s ON s.name = p.name AND s.revision = p.revision
         ORDER BY s.name
           FOR UPDATE OF s SKIP LOCKED
    LOOP
        IF one.gap_at IS NOT NULL THEN
            INSERT INTO jobherd.ticks (schedule, at, since, decided, missed, by)
            VALUES (one.name, one.gap_at, one.gap_from, one.gap_why, one.gap_missed, by)
            ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
        END IF;
        UPDATE jobherd.schedules s
           SET next_at = one.next, plan_from = NULL, gap_from = NULL, gap_why = NULL, error = one.error,
               last_at = greatest(s.last_at, one.gap_at), planned_with = plan_schedules.planned_with,
               revision = s.revision + 1
         WHERE s.name = one.name;
        RETURN NEXT one.name;
    END LOOP;
END $$;

-- Stores an instant and enqueues its job. Returns the job, or null if the instant has one already.
-- run: {"at", "run_at", "expires_at", "missed", "payload"}.
CREATE FUNCTION jobherd.start_run(schedule text, kind text, options jsonb, run jsonb, decided text, by text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    job     jobherd.ready;
    divided text[];
    number CONSTANT bigint := nextval('jobherd.job_ids');
BEGIN
    INSERT INTO jobherd.ticks AS t (schedule, at, decided, job, missed, by)
    VALUES (start_run.schedule, (run ->> 'at')::timestamptz, start_run.decided, number, (run ->> 'missed')::bigint,
            start_run.by)
    ON CONFLICT ON CONSTRAINT ticks_pkey DO UPDATE
       SET decided = excluded.decided, job = excluded.job, missed = excluded.missed, by = excluded.by,
           noted_at = excluded.noted_at
     WHERE t.job IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(options ->> 'queue', k.queue, 'default'), coalesce((options ->> 'priority')::smallint, k.priority, 0),
           k.partition_by
      INTO job.queue, job.priority, divided
      FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = start_run.kind;
    job.run_at := (run ->> 'run_at')::timestamptz;
    job.expires_at := (run ->> 'expires_at')::timestamptz;
    job.payload := (run -> 'payload')::json;
    job.extras.schedule := jsonb_build_object('name', start_run.schedule, 'at', run -> 'at', 'missed', run -> 'missed');
    BEGIN
        job.extras.partition := jobherd.partition_of(NULL, divided, job.payload, NULL, false);
    EXCEPTION WHEN invalid_parameter_value THEN
        job.extras.partition := NULL;  -- otherwise one schedule would end each maintenance process
    END;
    job.lane := jobherd.lane_of((job.extras).partition);
    IF job.run_at > now() THEN
        INSERT INTO jobherd.scheduled (id, run_at, expires_at, priority, queue, kind, payload, extras, lane)
        VALUES (number, job.run_at, job.expires_at, job.priority, job.queue, start_run.kind, job.payload, job.extras,
                job.lane);
    ELSE
        INSERT INTO jobherd.ready (id, run_at, expires_at, priority, queue, kind, payload, extras, lane)
        VALUES (number, job.run_at, job.expires_at, job.priority, job.queue, start_run.kind, job.payload, job.extras,
                job.lane);
    END IF;
    RETURN number;
END $$;

-- Decides instants of schedules. decisions: {"name", "revision", "next", "instants", "asked", "backfill"} each;
-- instants: the runs of `start_run` with "decided", in the order of time, and "since" for a stretch that did
-- not run. Only rows that still have that revision are changed, and a row that another session has locked
-- is skipped. Locks in the order of names. Returns the names of the schedules that were changed.
CREATE FUNCTION jobherd.tick(decisions jsonb, by text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    one     record;
    run     jsonb;
    what    text;
    overlap text;
    live    boolean;
    started bigint;
    latest  bigint;
    waiting jsonb;
    decided_at timestamptz;
BEGIN
    FOR one IN
        SELECT s.name, s.kind, s.options, s.last_at, s.last_job, s.held, d.next, d.instants, d.asked, d.backfill
          FROM jsonb_to_recordset(decisions) AS d (name text, revision bigint, next timestamptz, instants jsonb,
                                                   asked timestamptz[], backfill jsonb)
          JOIN jobherd.schedules s ON s.name = d.name AND s.revision = d.revision
         ORDER BY s.name
           FOR UPDATE OF s SKIP LOCKED
    LOOP
        overlap := coalesce(one.options ->> 'overlap', 'allow');
        -- A statement that begins after the lock was had: a worker may just have finished the job.
        live := overlap <> 'allow' AND (one.held IS NOT NULL OR jobherd.is_unfinished(one.last_job));
        latest := one.last_job;
        waiting := one.held;
        decided_at := one.last_at;
        FOR run IN SELECT i.value FROM jsonb_array_elements(one.instants) AS i LOOP
            what := run ->> 'decided';
            IF what IN ('manual', 'backfilled') THEN
                started := jobherd.start_run(one.name, one.kind, one.options, run, what, by);
                IF what = 'manual' AND NOT live THEN
                    latest := coalesce(started, latest);
                    live := overlap <> 'allow';
                END IF;
                CONTINUE;
            END IF;
            decided_at := (run ->> 'at')::timestamptz;
            IF what = 'ran' AND live AND overlap = 'replace' AND waiting IS NULL THEN
                PERFORM jobherd.cancel_as(latest, 'schedule ' || one.name, 'the next run replaces it');
                live := jobherd.is_unfinished(latest);  -- a waiting job is canceled at once
            END IF;
            IF what = 'ran' AND NOT live THEN
                started := jobherd.start_run(one.name, one.kind, one.options, run, 'ran', by);
                latest := coalesce(started, latest);
                live := overlap <> 'allow';
                CONTINUE;
            ELSIF what = 'ran' AND overlap = 'skip' THEN
                what := 'overlapped';
            ELSIF what = 'ran' AND overlap = 'queue' AND waiting IS NOT NULL THEN
                what := 'merged';
                waiting := jsonb_set(waiting, '{missed}', to_jsonb((waiting ->> 'missed')::bigint + 1
                                                                   + (run ->> 'missed')::bigint));
            ELSIF what = 'ran' THEN
                what := 'held';
                IF waiting IS NOT NULL THEN  -- replace: the newest one runs
                    UPDATE jobherd.ticks t SET decided = 'merged'
                     WHERE t.schedule = one.name AND t.at = (waiting ->> 'at')::timestamptz AND t.job IS NULL;
                    run := jsonb_set(run, '{missed}', to_jsonb((run ->> 'missed')::bigint + 1
                                                               + (waiting ->> 'missed')::bigint));
                END IF;
                waiting := run;
            END IF;
            INSERT INTO jobherd.ticks (schedule, at, since, decided, missed, because, by)
            VALUES (one.name, decided_at, (run ->> 'since')::timestamptz, what, (run ->> 'missed')::bigint,
                    CASE WHEN what IN ('overlapped', 'merged', 'held') THEN latest END, by)
            ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
        END LOOP;
        UPDATE jobherd.schedules s
           SET next_at = one.next, last_at = decided_at, last_job = latest, held = waiting, revision = s.revision + 1,
               asked = ARRAY(SELECT a FROM unnest(s.asked) AS a WHERE a <> ALL (coalesce(one.asked, '{}'))),
               backfill = one.backfill
         WHERE s.name = one.name;
        RETURN NEXT one.name;
    END LOOP;
END $$;

-- Starts the runs that waited for an earlier one, and resumes the pauses that have ended. Returns how many.
CREATE FUNCTION jobherd.tend_schedules(by text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    one    jobherd.schedules;
    done   bigint := 0;
    number bigint;
BEGIN
    FOR one IN
        SELECT s.* FROM jobherd.schedules s
         WHERE s.held IS NOT NULL AND s.paused_at IS NULL AND s.retired_at IS NULL
           AND NOT jobherd.is_unfinished(s.last_job)
         ORDER BY s.name
           FOR UPDATE SKIP LOCKED
    LOOP
        -- A user may have started a run before the lock was had.
        CONTINUE WHEN jobherd.is_unfinished(one.last_job);
        number := jobherd.start_run(one.name, one.kind, one.options, one.held, 'ran', by);
        UPDATE jobherd.schedules s
           SET held = NULL, last_job = coalesce(number, s.last_job), revision = s.revision + 1
         WHERE s.name = one.name;
        done := done + 1;
    END LOOP;
    FOR one IN
        SELECT s.* FROM jobherd.schedules s WHERE s.resume_at <= clock_timestamp() ORDER BY s.name FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE jobherd.schedules s
           SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, resume_at = NULL, revision = s.revision + 1,
               plan_from = CASE WHEN s.next_at <= clock_timestamp() THEN clock_timestamp() ELSE s.plan_from END,
               gap_from = CASE WHEN s.next_at <= clock_timestamp() THEN s.next_at ELSE s.gap_from END,
               gap_why = CASE WHEN s.next_at <= clock_timestamp() THEN 'paused' ELSE s.gap_why END
         WHERE s.name = one.name;
        done := done + 1;
    END LOOP;
    RETURN done;
END $$;
