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
    resumed_at      timestamptz,                        -- when its last pause ended
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
COMMENT ON TABLE jobherd.ticks IS
    'The instants of schedules: the job of each, or why there is none. Kept for 30 days.';
CREATE INDEX ticks_job ON jobherd.ticks (job) WHERE job IS NOT NULL;
CREATE INDEX ticks_noted_at ON jobherd.ticks (noted_at);

CREATE TABLE jobherd.declarations (
    schedule   text COLLATE "C" NOT NULL,
    supervisor bigint NOT NULL,
    pending    jsonb,                                   -- what the supervisor declares, until it is stored
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
