-- Periodic jobs: schedules, and their instants.
--
-- A schedule is a row with the next instant at which a job is due, `next_at`. Maintenance processes look
-- for due schedules, calculate the following instant in Python, and call jobherd.tick(), which in one
-- transaction stores the instant in `ticks`, inserts its job and moves `next_at`. Nothing else moves it, so
-- the instants of a schedule are one chain. The primary key of `ticks` allows one job for an instant,
-- however many maintenance processes, backfills and restored backups there are.
--
-- Each write of a schedule increments its revision. tick() and plan_schedules() only change rows that still
-- have the revision that was read before. So an edit, a pause or a tick of another process in between wins.

-- Which instant of which schedule a job is: {"name", "at", "missed"}. Null for all other jobs.
ALTER TYPE jobherd.extras ADD ATTRIBUTE schedule jsonb;

-- By assignment: a further attribute of the type changes nothing here.
CREATE OR REPLACE FUNCTION jobherd.extras_of(
    tenant text, webhook text, payload_bytes bytea, parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL,
    unique_key bytea DEFAULT NULL
)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    made jobherd.extras;
BEGIN
    IF num_nonnulls(tenant, webhook, payload_bytes, parent_id, traceparent, unique_key) = 0 THEN
        RETURN NULL;
    END IF;
    made.tenant := tenant;
    made.webhook := webhook;
    made.payload_bytes := payload_bytes;
    made.parent_id := parent_id;
    made.traceparent := traceparent;
    made.unique_key := unique_key;
    RETURN made;
END $$;

CREATE TABLE jobherd.schedules (
    name            text COLLATE "C" PRIMARY KEY,
    kind            text COLLATE "C" NOT NULL,
    cron            text,                               -- one of cron and every is given
    every           double precision,                   -- seconds
    tz              text        NOT NULL DEFAULT 'UTC',
    payload         jsonb       NOT NULL DEFAULT '{}',
    options         jsonb       NOT NULL DEFAULT '{}',  -- what differs from the defaults (handlers/_policy/schedule.py)
    revision        bigint      NOT NULL DEFAULT 1,
    next_at         timestamptz,                        -- null: not planned yet, or no further instant
    last_at         timestamptz,                        -- the last instant that was decided
    last_job        bigint,
    plan_from       timestamptz DEFAULT clock_timestamp(),  -- next_at must be calculated: the first instant after this
    gap_from        timestamptz,                        -- instants from here to plan_from did not run,
    gap_why         text,                               -- for this reason
    planned_with    text,                               -- version of the time zone data
    held            jsonb,                              -- a run that waits until last_job has finished
    asked           timestamptz[] NOT NULL DEFAULT '{}',    -- runs that a user asked for
    backfill        jsonb,                              -- {"from", "to", "parallel"}: what is still to be run again
    declared        jsonb,                              -- as a handler declares it; null: made by SQL or the command line
    declared_at     timestamptz,                        -- when the declaring supervisor began: the latest one wins
    undeclared_at   timestamptz,                        -- since then no live supervisor declares it
    retired_at      timestamptz,                        -- the code declares it no more: it runs no more
    edited_by       text,                               -- a user's text counts more than a handler's
    edited_at       timestamptz,
    paused_at       timestamptz,
    paused_by       text,
    pause_reason    text,
    resume_at       timestamptz,
    error           text,                               -- why it cannot be planned
    CONSTRAINT schedules_name_is_a_name CHECK (name ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(name) <= 100),
    CONSTRAINT schedules_kind_is_a_name CHECK (kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100),
    CONSTRAINT schedules_have_one_timing CHECK (num_nonnulls(cron, every) = 1 AND every > 0 AND every < 3e9),
    CONSTRAINT schedules_are_small CHECK (octet_length(payload::text) <= 100000 AND length(cron) <= 1000),
    CONSTRAINT schedules_times_are_finite CHECK (
        isfinite(next_at) AND isfinite(last_at) AND isfinite(plan_from) AND isfinite(resume_at))
)
-- A row is written once for each instant.
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.schedules IS 'Schedules of periodic jobs.';

CREATE TABLE jobherd.ticks (
    schedule text COLLATE "C" NOT NULL,                 -- no reference: it outlives the schedule
    at       timestamptz NOT NULL,                      -- the instant; of several, the last one
    since    timestamptz,                               -- of several that did not run: the first one
    decided  text COLLATE "C" NOT NULL,
    job      bigint,                                    -- null: no job was enqueued
    missed   bigint NOT NULL DEFAULT 0,                 -- instants that the job or the row stands for in addition
    because  bigint,                                    -- the earlier job that still ran
    by       text,                                      -- who decided
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule, at),
    CONSTRAINT ticks_decided_is_known CHECK (
        decided IN ('ran', 'held', 'manual', 'backfilled', 'missed', 'overlapped', 'merged', 'paused', 'edited', 'retired'))
);
CREATE INDEX ticks_job ON jobherd.ticks (job) WHERE job IS NOT NULL;
CREATE INDEX ticks_noted_at ON jobherd.ticks (noted_at);
COMMENT ON TABLE jobherd.ticks IS
    'The instants of schedules: the job of each, or why there is none. Kept for 30 days.';

CREATE TABLE jobherd.declarations (
    schedule   text COLLATE "C" NOT NULL,
    supervisor bigint NOT NULL,
    PRIMARY KEY (schedule, supervisor)
);
COMMENT ON TABLE jobherd.declarations IS 'Which supervisors'' handlers declare which schedules.';

-- Maintenance processes set a timer for the earliest schedule. A change that needs them wakes them.
CREATE FUNCTION jobherd.wake_planners()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT OR UPDATE OF plan_from, resume_at, asked, backfill ON jobherd.schedules FOR EACH ROW
    WHEN (NEW.plan_from IS NOT NULL OR NEW.resume_at IS NOT NULL OR NEW.asked <> '{}' OR NEW.backfill IS NOT NULL)
    EXECUTE FUNCTION jobherd.wake_planners();

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

-- Returns the seconds until a maintenance process must check the schedules: infinity if none is to be due, null if
-- there are none. A run that is held, and a backfill that may go on, are checked each second.
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

-- Returns whether a schedule's instants would differ. If they do not, an edit leaves next_at alone.
CREATE FUNCTION jobherd.is_other_timing(
    schedule jobherd.schedules, cron text, every double precision, tz text, options jsonb
)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (schedule.cron, schedule.every, schedule.tz, schedule.options ->> 'starts_at', schedule.options ->> 'ends_at')
           IS DISTINCT FROM (cron, every, tz, options ->> 'starts_at', options ->> 'ends_at')
$$;

-- Stores what the handlers of a supervisor declare: {"name", "kind", "cron", "every", "tz", "payload", "options"} each.
-- The supervisor that began latest decides, so a respawned worker of an earlier release reverts nothing, and
-- a rollback does. A text that a user has edited stays. Equal rows are only read, and no lock is waited for
-- longer than 2 s: a worker that starts must not wait for a user's open transaction. Returns the name that
-- could not be stored for that reason.
CREATE FUNCTION jobherd.declare_schedules(supervisor bigint, schedules jsonb)
RETURNS SETOF text
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    began CONSTANT timestamptz := (SELECT s.started_at FROM jobherd.supervisors s WHERE s.id = declare_schedules.supervisor);
    one   record;
    again boolean;
BEGIN
    DELETE FROM jobherd.declarations d
     WHERE d.supervisor = declare_schedules.supervisor
       AND NOT EXISTS (SELECT FROM jsonb_array_elements(schedules) AS s WHERE s.value ->> 'name' = d.schedule);
    INSERT INTO jobherd.declarations (schedule, supervisor)
    SELECT s.value ->> 'name', declare_schedules.supervisor
      FROM jsonb_array_elements(schedules) AS s
     WHERE began IS NOT NULL
       AND NOT EXISTS (SELECT FROM jobherd.declarations d
                        WHERE d.schedule = s.value ->> 'name' AND d.supervisor = declare_schedules.supervisor)
     ORDER BY 1
    ON CONFLICT DO NOTHING;
    FOR one IN
        SELECT d.value AS declared, t.*
          FROM jsonb_array_elements(schedules) AS d
         CROSS JOIN LATERAL jsonb_to_record(d.value) AS t (name text, kind text, cron text, every double precision,
                                                           tz text, payload jsonb, options jsonb)
         WHERE began IS NOT NULL
           AND NOT EXISTS (SELECT FROM jobherd.schedules s
                            WHERE s.name = t.name AND (s.declared_at > began
                                  OR s.declared = d.value AND s.undeclared_at IS NULL AND s.retired_at IS NULL))
         ORDER BY t.name
    LOOP
        BEGIN
            INSERT INTO jobherd.schedules (name, kind, cron, every, tz, payload, options, declared, declared_at)
            VALUES (one.name, one.kind, one.cron, one.every, one.tz, one.payload, one.options, one.declared, began)
            ON CONFLICT (name) DO NOTHING;
            CONTINUE WHEN FOUND;
            PERFORM FROM jobherd.schedules s WHERE s.name = one.name FOR UPDATE;
            -- An instant that is due and that no maintenance process has met yet.
            INSERT INTO jobherd.ticks (schedule, at, decided, by)
            SELECT s.name, s.next_at, 'edited', 'deploy'
              FROM jobherd.schedules s
             WHERE s.name = one.name AND s.edited_by IS NULL AND s.next_at <= clock_timestamp() AND s.plan_from IS NULL
               AND s.paused_at IS NULL AND s.retired_at IS NULL AND (s.declared_at <= began) IS NOT FALSE
               AND jobherd.is_other_timing(s, one.cron, one.every, one.tz, one.options)
            ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
            UPDATE jobherd.schedules s
               SET kind = n.kind, cron = n.cron, every = n.every, tz = n.tz, payload = n.payload, options = n.options,
                   declared = one.declared, declared_at = began, undeclared_at = NULL, retired_at = NULL,
                   revision = s.revision + 1,
                   plan_from = CASE WHEN n.moved OR s.retired_at IS NOT NULL
                                    THEN greatest(s.last_at, clock_timestamp()) ELSE s.plan_from END,
                   gap_from = CASE WHEN s.retired_at IS NOT NULL AND s.next_at <= clock_timestamp()
                                   THEN s.next_at ELSE s.gap_from END,
                   gap_why = CASE WHEN s.retired_at IS NOT NULL AND s.next_at <= clock_timestamp()
                                  THEN 'retired' ELSE s.gap_why END
              FROM (SELECT CASE WHEN o.edited_by IS NULL THEN one.kind ELSE o.kind END AS kind,
                           CASE WHEN o.edited_by IS NULL THEN one.cron ELSE o.cron END AS cron,
                           CASE WHEN o.edited_by IS NULL THEN one.every ELSE o.every END AS every,
                           CASE WHEN o.edited_by IS NULL THEN one.tz ELSE o.tz END AS tz,
                           CASE WHEN o.edited_by IS NULL THEN one.payload ELSE o.payload END AS payload,
                           CASE WHEN o.edited_by IS NULL THEN one.options ELSE o.options END AS options,
                           o.edited_by IS NULL AND jobherd.is_other_timing(o, one.cron, one.every, one.tz, one.options)
                           AS moved
                      FROM jobherd.schedules o WHERE o.name = one.name) AS n
             WHERE s.name = one.name AND (s.declared_at <= began) IS NOT FALSE;
        EXCEPTION
            WHEN lock_not_available THEN
                RETURN NEXT one.name;
                EXIT;
        END;
    END LOOP;
END $$;

-- Retires the schedules that no live supervisor has declared for 10 minutes, and deletes those that were retired 30
-- days ago. One that a user made or edited stays.
CREATE FUNCTION jobherd.retire_schedules()
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM jobherd.declarations d
     WHERE NOT EXISTS (SELECT FROM jobherd.supervisors s
                        WHERE s.id = d.supervisor AND s.lease_until > clock_timestamp() - interval '10 min');
    UPDATE jobherd.schedules s SET undeclared_at = clock_timestamp()
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.declared IS NOT NULL AND o.edited_by IS NULL AND o.undeclared_at IS NULL
               AND NOT EXISTS (SELECT FROM jobherd.declarations d JOIN jobherd.supervisors u ON u.id = d.supervisor
                                WHERE d.schedule = o.name AND u.lease_until > clock_timestamp())
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS gone
     WHERE s.name = gone.name;
    UPDATE jobherd.schedules s SET undeclared_at = NULL
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.undeclared_at IS NOT NULL AND o.retired_at IS NULL
               AND EXISTS (SELECT FROM jobherd.declarations d JOIN jobherd.supervisors u ON u.id = d.supervisor
                            WHERE d.schedule = o.name AND u.lease_until > clock_timestamp())
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS back
     WHERE s.name = back.name;
    DELETE FROM jobherd.schedules s
     WHERE s.name IN (SELECT o.name FROM jobherd.schedules o
                       WHERE o.retired_at < clock_timestamp() - interval '30 days' FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    UPDATE jobherd.schedules s SET retired_at = clock_timestamp(), held = NULL, revision = s.revision + 1
      FROM (SELECT o.name FROM jobherd.schedules o
             WHERE o.undeclared_at < clock_timestamp() - interval '10 min' AND o.retired_at IS NULL
               AND o.declared IS NOT NULL AND o.edited_by IS NULL
             ORDER BY o.name FOR UPDATE SKIP LOCKED) AS old
     WHERE s.name = old.name
    RETURNING s.name;
END $$;
