-- The life cycle of a job, and the tables of unfinished jobs: ready, scheduled, parked, blocked, running.
-- A job's table is its state: a job changes its state by moving to another table. Also `cancels`, the
-- requests to cancel running jobs.
--
--             enqueue/enqueue_jobs, enqueue/copy_*, jobherd.enqueue()
--                         | due now                     | due later
--                         v                             v
--                     +-------+   maintenance/      +-----------+
--         +---------->| ready |<--promote_due-------| scheduled |<-------------+
--         |           +-------+                     +-----------+              |
--         |            |    ^ |                                                |
--         |            |    | | claim/claim_gated sets jobs of a full or       |
--         |            |    | v paused kind aside,                             |
--         |            |  +--------+                                           |
--         |            |  | parked |  maintenance/release_parked returns them  |
--         |            |  +--------+                                           |
--         |            |       |                                               |
--         |  claim/claim_jobs  | claim/claim_gated                             |
--         |  claim/claim_job   |                                               |
--         |            v       v                                               |
--         |           +---------+   settle/settle_jobs: retry, snooze          |
--         +-----------| running |----------------------------------------------+
--   recover/requeue_* +---------+
--   recover/reclaim_supervisors
--                          |  settle/settle_completed, settle/settle_jobs,
--                          v  control/cancel_job (a waiting job goes there directly)
--                     +---------+
--                     | history |  control/retry_job moves a finished job to `ready`
--                     +---------+
--                          |  maintenance/keep_partitions, control/purge_history
--                          v
--                        gone
--
-- The names on the arrows are statements in sql/queries/. A job that waits for other jobs begins in `blocked`,
-- and moves to `ready` or `scheduled` once they have ended (28_after.sql). `ready`, `scheduled`, `parked` and
-- `blocked` hold one row for each job. `running` holds one row for each claimed batch, with the whole jobs in an
-- array: one insert and one delete move the batch. Cost: no row is updated on this path.
--
-- A child process owns what it has claimed: each write about a running job names the child and the
-- fencing token of its claim. A process that was reclaimed has neither, so its late write changes
-- nothing.

CREATE SEQUENCE jobherd.job_ids;
CREATE SEQUENCE jobherd.tokens;
COMMENT ON SEQUENCE jobherd.tokens IS
    'Fencing tokens: each claim takes the next one, and none is used twice.';

-- What few jobs have, in one column that is null for all others: such a job is no wider, and the
-- statements that move jobs name no further column. A composite type can grow by an attribute
-- while it is in use.
CREATE TYPE jobherd.extras AS (
    tenant        text,
    webhook       text,     -- the URL to call when the job has finished
    payload_bytes bytea,    -- a payload that is not JSON
    parent_id     bigint,   -- the job whose handler enqueued this one
    traceparent   text,     -- W3C Trace Context, with tracestate and baggage after it
    unique_key    bytea,    -- what a retry by hand must take again before it makes a finished job ready
    schedule      jsonb,    -- the instant of a schedule whose job this is: {"name", "at", "missed"}
    partition     text,     -- the name from which `lane` is made
    flow          bigint,   -- the flow to which it belongs; 0: to none, but other jobs wait for this one
    node          text,     -- name of the member in its flow
    item          integer   -- place in its node, if that has several jobs; from 0
);

-- Returns whether a job of 256 kB or more may be stored: it has at most 64 MB, or has run before. No batch
-- may exceed what a worker or one row of PostgreSQL can hold (1 GB). A job that already ran returns with
-- its error text and is not measured again. Compressed values are measured uncompressed: in `running` they
-- come back plain. Below 256 kB nothing is measured: no method makes more than 64 MB that small.
CREATE FUNCTION jobherd.is_large_job_allowed(
    payload json, extras jobherd.extras, last_error jsonb, attempts smallint, crashes smallint
)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN attempts > 0 OR crashes > 0
        OR CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                ELSE 4 + octet_length(payload::text) END
           + coalesce(CASE WHEN pg_column_compression(extras) IS NULL THEN pg_column_size(extras)
                           ELSE 4 + octet_length(extras::text) END, 0)
           + coalesce(CASE WHEN pg_column_compression(last_error) IS NULL THEN pg_column_size(last_error)
                           ELSE 4 + octet_length(last_error::text) END, 0) <= 67108864;
END $$;

-- Constraints: raw SQL may insert a row. A count without room for one more would be rejected by
-- the claim itself and stop each worker that reaches the job. A timeout that is not a number would
-- never end. Python has no datetime before year 1 or after 9999. Kinds that begin with `jobs:` are
-- Jobherd's own and act with a worker's rights: a role that may not choose an id must not enqueue them.
-- Cost: PostgreSQL reads the text of each constraint for each INSERT, so they are few and short. A
-- comparison with a null is null and passes, a range excludes the infinities, and a timeout that is not a
-- number is larger than any other. A length is compared, not matched: a bounded repetition in the pattern
-- cost 3 us a row, without it 0.2 us.
CREATE TABLE jobherd.ready (
    id           bigint      NOT NULL DEFAULT nextval('jobherd.job_ids'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    run_at       timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                           -- after it the job expires and does not start
    timeout      double precision,                      -- seconds; null: what the handler declares
    last_error   jsonb,                                 -- code and message of the latest attempt
    priority     smallint    NOT NULL DEFAULT 0,        -- lower first
    attempts     smallint    NOT NULL DEFAULT 0,        -- counted attempts before this one
    max_attempts smallint,                              -- null: what the kind declares
    crashes      smallint    NOT NULL DEFAULT 0,        -- processes that died with it
    alone        boolean     NOT NULL DEFAULT false,    -- claim it alone: its last host died with it
    queue        text COLLATE "C" NOT NULL DEFAULT 'default',
    kind         text COLLATE "C" NOT NULL,
    payload      json        NOT NULL DEFAULT '{}',
    extras       jobherd.extras,
    lane         text COLLATE "C",                      -- a hash of the job's partition; null: it has none
    CONSTRAINT ready_queue_is_a_name CHECK (queue ~ '^[a-z0-9_][a-z0-9_.-]*$' AND length(queue) <= 63),
    CONSTRAINT ready_kind_is_a_name CHECK (kind ~ '^[a-z0-9_][a-z0-9_.:-]*$' AND length(kind) <= 100),
    CONSTRAINT ready_kind_is_not_for_producers CHECK (
        NOT starts_with(kind, 'jobs:') OR has_column_privilege('jobherd.ready', 'id', 'INSERT')),
    CONSTRAINT ready_counts_are_counts CHECK (
        id > 0 AND least(attempts, crashes) >= 0 AND greatest(attempts, crashes) < 32767
        AND max_attempts >= 1 AND timeout > 0 AND timeout < 'Infinity'),
    CONSTRAINT ready_is_created_in_our_time CHECK (
        created_at > '1900-01-01 00:00Z' AND created_at < '9000-01-01 00:00Z'),
    CONSTRAINT ready_times_are_finite CHECK (
        least(run_at, expires_at) > '1900-01-01 00:00Z' AND greatest(run_at, expires_at) < '9000-01-01 00:00Z'),
    CONSTRAINT ready_payload_extras_and_last_error_are_at_most_64_mb CHECK (
        pg_column_size(payload) + coalesce(pg_column_size(extras), 0) + coalesce(pg_column_size(last_error), 0) < 262144
        OR jobherd.is_large_job_allowed(payload, extras, last_error, attempts, crashes))
)
WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
      autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.ready IS 'Jobs that a worker can claim now.';
CREATE UNIQUE INDEX ready_in_claim_order ON jobherd.ready (queue, priority, id);
CREATE UNIQUE INDEX ready_by_id ON jobherd.ready (id);
-- Jobs that came from a delay, a retry or another time. They keep their old ids, so they are before
-- the position from which claim/walks/seek starts. A job that is enqueued due has both times
-- equal, and costs this index nothing.
CREATE INDEX ready_came_back ON jobherd.ready (queue, priority, id) WHERE run_at > created_at;
-- Claims take turns between the lanes of a queue by this index. A job without a lane costs it nothing.
CREATE INDEX ready_by_lane ON jobherd.ready (queue, lane, priority, id) WHERE lane IS NOT NULL;
-- A job without a parent costs the indexes of child jobs nothing.
CREATE INDEX ready_parent ON jobherd.ready (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;
-- A job without a flow costs the indexes of members nothing.
CREATE INDEX ready_of_flow ON jobherd.ready (((extras).flow), id) WHERE (extras).flow > 0;
-- Replication: in a database with a publication for all tables, PostgreSQL rejects each DELETE
-- from a table without a primary key or such an identity. That would stop every claim.
ALTER TABLE jobherd.ready REPLICA IDENTITY USING INDEX ready_by_id;

CREATE TABLE jobherd.scheduled (
    LIKE jobherd.ready INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (id)
)
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.scheduled IS
    'Jobs that are due later: delayed jobs, and jobs that wait for their next attempt.';
CREATE INDEX scheduled_by_time ON jobherd.scheduled (run_at, id);
-- For partitions in strict order: none of their jobs starts while an earlier one waits for its retry (lane_waits).
CREATE INDEX scheduled_by_lane ON jobherd.scheduled (queue, lane)
    WHERE lane IS NOT NULL AND (attempts > 0 OR last_error IS NOT NULL);
CREATE INDEX scheduled_parent ON jobherd.scheduled (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;
CREATE INDEX scheduled_of_flow ON jobherd.scheduled (((extras).flow), id) WHERE (extras).flow > 0;

-- Ready jobs of a kind that was paused or full when a claim met them. Set aside: otherwise each
-- claim would walk over them again to the jobs behind them. For everything else they are ready, and
-- the view `waiting` shows both.
CREATE TABLE jobherd.parked (LIKE jobherd.ready INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.parked IS
    'Ready jobs that a claim has set aside, because their kind is paused or full.';
CREATE UNIQUE INDEX parked_in_claim_order ON jobherd.parked (queue, priority, id);
CREATE UNIQUE INDEX parked_by_kind ON jobherd.parked (kind, queue, priority, id);
CREATE UNIQUE INDEX parked_by_id ON jobherd.parked (id);
-- Strict order waits for parked jobs as well (lane_waits), and parked jobs return to their lanes in turn (return_parked).
CREATE INDEX parked_by_lane ON jobherd.parked (queue, lane, priority, id) WHERE lane IS NOT NULL;
CREATE INDEX parked_by_kind_and_lane ON jobherd.parked (kind, queue, lane, priority, id);
CREATE INDEX parked_parent ON jobherd.parked (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;
CREATE INDEX parked_of_flow ON jobherd.parked (((extras).flow), id) WHERE (extras).flow > 0;
ALTER TABLE jobherd.parked REPLICA IDENTITY USING INDEX parked_by_id;

-- Jobs that must not start yet. For each there are rows in `edges` (28_after.sql).
CREATE TABLE jobherd.blocked (
    LIKE jobherd.ready INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (id)
)
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.blocked IS 'Jobs that wait for other jobs.';
CREATE INDEX blocked_parent ON jobherd.blocked (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;
CREATE INDEX blocked_of_flow ON jobherd.blocked (((extras).flow), id) WHERE (extras).flow > 0;

CREATE TABLE jobherd.running (
    child        bigint      NOT NULL,
    token        bigint      NOT NULL,                  -- the fencing token of the claim
    claimed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    queue        text COLLATE "C" NOT NULL,             -- a batch never mixes queues
    jobs         jobherd.ready[] NOT NULL,              -- as they were in `ready`: attempts before this claim
    limited_kind text COLLATE "C",                      -- of a job that was claimed alone under a limit; null: a batch
    lane         text COLLATE "C",                      -- of a job that was claimed alone under a limit of each partition
    PRIMARY KEY (child, token),
    CONSTRAINT running_holds_jobs CHECK (cardinality(jobs) > 0)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.running IS 'Claimed batches: one row for each claim, with its jobs.';
-- The jobs of a claim are compressed where the server has lz4: PostgreSQL writes half as much WAL for a claim, at no
-- more processor time. With pglz, the other method, a claim took 13 % longer, so without lz4 nothing is compressed.
-- A dump of a database with lz4 reports one error when it is restored on a server without it, and nothing is lost.
-- `jobherd doctor` then names the column.
ALTER TABLE jobherd.running ALTER jobs SET STORAGE EXTERNAL;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE jobherd.running ALTER jobs SET STORAGE EXTENDED, ALTER jobs SET COMPRESSION lz4;
    END IF;
END $$;
-- The rows with such a kind are the used slots of the concurrency limits (13_limits.sql).
CREATE INDEX running_by_limited_kind ON jobherd.running (limited_kind) WHERE limited_kind IS NOT NULL;
CREATE INDEX running_limited_by_queue ON jobherd.running (queue) WHERE limited_kind IS NOT NULL;
CREATE INDEX running_by_lane ON jobherd.running (queue, lane) WHERE lane IS NOT NULL;

-- A request to cancel a running job is a row of its own and does not touch the row of the claim.
-- A settlement, a release and a reclaim lock that row: while the transaction of a caller stayed
-- open, they would all wait for it, and one caller could stop a fleet. The supervisor finds the
-- requests about its jobs (control/find_cancels). A settlement or release that returns a job to the
-- queue ends the job instead if it sees a request. A request that is committed later is applied by
-- the maintenance process (maintenance/apply_cancels). tests/models/cancel.pml checks the protocol.
-- The key includes the time: with the job alone, a second caller would wait for the first one.
CREATE TABLE jobherd.cancels (
    job      bigint      NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, asked_at)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.cancels IS 'Requests to cancel running jobs.';
