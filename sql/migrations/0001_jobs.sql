-- How a job lives: it is a row of the table that names its state.
--
--   enqueue --> ready ------claim------> running --settle--> history
--      |          ^                      |     |
--      +--> scheduled <--retry, snooze---+     +--release--> ready
--
-- ready and scheduled hold whole jobs, one row each. running holds one row per claimed batch, with the whole jobs in an
-- array: a claim moves a batch by one insert, a settlement ends it by one delete. history and attempts hold the past, in
-- partitions named by the day from which their rows may be dropped. Nothing here is ever updated while it is hot.

CREATE SEQUENCE jobherd.job_ids;
CREATE SEQUENCE jobherd.tokens;  -- the fence: each claim takes the next, none is given back

CREATE TABLE jobherd.ready (
    id           bigint      NOT NULL DEFAULT nextval('jobherd.job_ids'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    run_at       timestamptz NOT NULL DEFAULT now(),
    good_until   timestamptz,                       -- past it the job expires instead of starting
    timeout      double precision,                  -- seconds; null: what the handler declares
    last_error   jsonb,                             -- code and message of the latest attempt, for people
    priority     smallint    NOT NULL DEFAULT 0,    -- lower first
    attempts     smallint    NOT NULL DEFAULT 0,    -- claims that counted
    max_attempts smallint,                          -- null: what the kind declares
    crashes      smallint    NOT NULL DEFAULT 0,    -- processes that died with it
    alone        boolean     NOT NULL DEFAULT false, -- claim it alone: its last host died with it
    queue        text COLLATE "C" NOT NULL DEFAULT 'default',
    kind         text COLLATE "C" NOT NULL,
    payload      json        NOT NULL DEFAULT '{}',
    CONSTRAINT ready_queue_is_a_name CHECK (queue ~ '^[a-z0-9_][a-z0-9_.-]{0,62}$'),
    CONSTRAINT ready_kind_is_a_name CHECK (kind ~ '^[a-z0-9_][a-z0-9_.:-]{0,99}$'),
    CONSTRAINT ready_counts_are_counts CHECK (attempts >= 0 AND crashes >= 0 AND max_attempts >= 1 AND timeout > 0),
    CONSTRAINT ready_times_are_finite CHECK (
        isfinite(run_at) AND isfinite(created_at)
        AND run_at < '9000-01-01' AND run_at > '1900-01-01'
        AND (good_until IS NULL OR (isfinite(good_until) AND good_until < '9000-01-01' AND good_until > '1900-01-01')))
);
CREATE UNIQUE INDEX ready_in_claim_order ON jobherd.ready (queue, priority, id);
CREATE UNIQUE INDEX ready_by_id ON jobherd.ready (id);

CREATE TABLE jobherd.scheduled (
    LIKE jobherd.ready INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (id)
);
CREATE INDEX scheduled_by_time ON jobherd.scheduled (run_at, id);

CREATE TABLE jobherd.running (
    child      bigint      NOT NULL,
    token      bigint      NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    queue      text COLLATE "C" NOT NULL,           -- a batch never mixes queues
    jobs       jobherd.ready[] NOT NULL,
    cancelled  bigint[],                            -- ids somebody asked to cancel
    PRIMARY KEY (child, token),
    CONSTRAINT running_holds_jobs CHECK (cardinality(jobs) > 0)
);
ALTER TABLE jobherd.running ALTER jobs SET STORAGE EXTERNAL;  -- compressing what lives for milliseconds costs 15 % of the backend

CREATE TABLE jobherd.history (
    id           bigint      NOT NULL,
    created_at   timestamptz NOT NULL,
    run_at       timestamptz NOT NULL,
    started_at   timestamptz,                       -- null: it never started
    finished_at  timestamptz NOT NULL,
    drop_on      date        NOT NULL,              -- the day from which the row may go
    token        bigint,
    priority     smallint    NOT NULL,
    attempts     smallint    NOT NULL,
    max_attempts smallint,
    crashes      smallint    NOT NULL,
    state        text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    payload      json        NOT NULL,
    result       json,
    error_code   text,
    error        text,
    traceback    text,
    ran_on       text,                              -- host/pid of the child
    usage        jsonb,                             -- cpu seconds and peak memory of the last attempt
    post_mortem  jsonb,                             -- how its process died, if it did
    progress     jsonb,
    CONSTRAINT history_state_is_terminal CHECK (state IN ('completed', 'failed', 'cancelled', 'expired')),
    CONSTRAINT history_failed_says_why CHECK (state <> 'failed' OR error IS NOT NULL),
    CONSTRAINT history_ended_after_it_started CHECK (started_at <= finished_at)
) PARTITION BY RANGE (drop_on);
CREATE INDEX history_by_id ON jobherd.history (id);
CREATE INDEX history_by_end ON jobherd.history (finished_at);

CREATE TABLE jobherd.attempts (                     -- attempts that did not end their job
    job         bigint      NOT NULL,
    token       bigint,
    attempt     smallint    NOT NULL,
    outcome     text COLLATE "C" NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz NOT NULL,
    drop_on     date        NOT NULL,
    error_code  text,
    error       text,
    traceback   text,
    ran_on      text,
    usage       jsonb,
    post_mortem jsonb
) PARTITION BY RANGE (drop_on);
CREATE INDEX attempts_by_job ON jobherd.attempts (job, token);

-- A row whose day has no partition yet lands here rather than being refused: the keeper makes partitions ahead, and a
-- fleet whose keeper was away for weeks must still be able to settle.
CREATE TABLE jobherd.history_default PARTITION OF jobherd.history DEFAULT;
CREATE TABLE jobherd.attempts_default PARTITION OF jobherd.attempts DEFAULT;

CREATE TABLE jobherd.supervisors (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host        text        NOT NULL,
    machine     text        NOT NULL,               -- boot id and pid namespace: where a pid means something
    pid         integer     NOT NULL,
    pid_started bigint      NOT NULL,               -- start time in clock ticks since boot: tells a pid from its reuse
    version     text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE jobherd.children (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    supervisor      bigint      NOT NULL,
    incarnation     integer     NOT NULL,           -- the parent's count of forks: names a child before it ever connects
    slot            smallint    NOT NULL,
    kind            text        NOT NULL,
    pid             integer     NOT NULL,
    pid_started     bigint      NOT NULL,
    backend_pid     integer     NOT NULL DEFAULT pg_backend_pid(),
    backend_started timestamptz NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (supervisor, incarnation)
);

CREATE TABLE jobherd.kinds (                        -- what handlers declare, written by children as they load them
    name           text COLLATE "C" PRIMARY KEY,
    queue          text COLLATE "C" NOT NULL,
    priority       smallint         NOT NULL,
    max_attempts   smallint         NOT NULL,
    max_crashes    smallint         NOT NULL,
    keep_completed integer          NOT NULL,       -- days
    keep_failed    integer          NOT NULL,       -- days
    seen_at        timestamptz      NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE jobherd.queues (                       -- only queues somebody said something about
    name       text COLLATE "C" PRIMARY KEY,
    paused_at  timestamptz,
    paused_by  text,
    reason     text
);

CREATE TABLE jobherd.progress (                     -- what running jobs say of themselves, copied from the boards
    job        bigint PRIMARY KEY,
    token      bigint      NOT NULL,
    progress   jsonb       NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- These tables turn over completely many times a minute: the default of a fifth of the table would let the dead rows
-- pile up behind the live ones, and every claim would step over them.
ALTER TABLE jobherd.ready SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobherd.scheduled SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobherd.running SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobherd.supervisors SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
ALTER TABLE jobherd.progress SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- Whoever puts rows into ready wakes somebody: one notification per transaction and queue, at commit.
CREATE FUNCTION jobherd.wake_ready() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('jobherd_jobs', queue) FROM (SELECT DISTINCT queue FROM arrived) AS queues;
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT ON jobherd.ready
    REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION jobherd.wake_ready();

-- The keepers' timer stands at the earliest row: only a row before all others is news.
CREATE FUNCTION jobherd.wake_scheduled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('jobherd_jobs', '@due')
    WHERE (SELECT min(run_at) FROM arrived) <= (SELECT run_at FROM jobherd.scheduled ORDER BY run_at LIMIT 1);
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT ON jobherd.scheduled
    REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION jobherd.wake_scheduled();

CREATE FUNCTION jobherd.wake_paused() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('jobherd_jobs', '@pause');
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT OR UPDATE OR DELETE ON jobherd.queues
    FOR EACH STATEMENT EXECUTE FUNCTION jobherd.wake_paused();
