-- The rollup: finished jobs summed by kind and slice of time. A chart of a week reads some thousand
-- rows and not some hundred million. Maintenance processes fill it from `history`, minute by minute
-- (maintenance/update_rollup). Older slices are merged, and deleted in the end. The hot path does
-- not touch these tables.
--
-- Each row of `history` is counted exactly once, also one that is committed long after its
-- finished_at. A run counts what it sees and the run before did not see: rollup_mark holds the
-- snapshot of that one, and a row's xmin says whether it was in it. Such a row finished not long
-- before that run (`lag`), or its job was claimed then: it is in the mark's `pending` and is found by
-- its id. So a run reads what has finished since the last one, and little more.
-- Not counted: a job that leaves `history` before the next run (a retry within seconds, a kind that
-- keeps nothing), and a job that an application cancels in a transaction that stays open for longer
-- than the lag.

CREATE TABLE jobherd.rollup (
    at        timestamptz NOT NULL,                     -- where the slice begins
    kind      text COLLATE "C" NOT NULL,
    step      integer     NOT NULL,                     -- its length in seconds
    completed bigint      NOT NULL,
    failed    bigint      NOT NULL,
    cancelled bigint      NOT NULL,
    expired   bigint      NOT NULL,
    started   bigint      NOT NULL,                     -- how many of these had started: the sums below are theirs
    ran       double precision NOT NULL,                -- seconds, all runs together
    waited    double precision NOT NULL,                -- seconds from when they were due to their start
    cpu       double precision NOT NULL,                -- CPU seconds; a run too short to be measured counts whole
    memory    bigint,                                   -- the largest process, in bytes; null: none was measured
    retried   bigint NOT NULL DEFAULT 0,                -- failed attempts; the other columns count jobs
    PRIMARY KEY (at, kind, step)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE jobherd.rollup IS 'Finished jobs by kind and slice of time.';

CREATE TABLE jobherd.rollup_times (
    at     timestamptz NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    step   integer     NOT NULL,
    bucket smallint    NOT NULL,                        -- up to 10 us * 2^(bucket / 4)
    ran    bigint      NOT NULL,                        -- how many jobs ran that long
    waited bigint      NOT NULL,                        -- how many jobs waited that long
    PRIMARY KEY (at, kind, step, bucket)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE jobherd.rollup_times IS 'Histograms of run times and waiting times.';

CREATE TABLE jobherd.rollup_failures (
    at       timestamptz NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    step     integer     NOT NULL,
    state    text COLLATE "C" NOT NULL,
    code     text COLLATE "C" NOT NULL,                 -- '': it has none
    jobs     bigint      NOT NULL,
    last_at  timestamptz NOT NULL,
    last_job bigint      NOT NULL,                      -- an example
    PRIMARY KEY (at, kind, step, state, code)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE jobherd.rollup_failures IS 'Jobs that did not complete, by error code.';

-- The same by queue and by host, for the charts of one of them. Narrow: no percentiles, and no failed attempts of a
-- queue, which an attempt's row does not name. A job that never started has no host.
CREATE TABLE jobherd.rollup_scopes (
    at        timestamptz NOT NULL,
    scope     text COLLATE "C" NOT NULL CHECK (scope IN ('queue', 'host')),
    name      text COLLATE "C" NOT NULL,                -- of the queue or host
    step      integer     NOT NULL,
    completed bigint      NOT NULL,
    failed    bigint      NOT NULL,
    cancelled bigint      NOT NULL,
    expired   bigint      NOT NULL,
    started   bigint      NOT NULL,
    ran       double precision NOT NULL,
    waited    double precision NOT NULL,
    retried   bigint      NOT NULL,                     -- 0 for a queue
    PRIMARY KEY (at, scope, name, step)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE jobherd.rollup_scopes IS 'Finished jobs by queue, by host and slice of time.';

CREATE TABLE jobherd.rollup_mark (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),   -- one row
    at      timestamptz NOT NULL,
    seen    pg_snapshot NOT NULL,
    pending bigint[]    NOT NULL                        -- jobs that had been running for longer than the lag
);
COMMENT ON TABLE jobherd.rollup_mark IS 'What the last run has counted.';

CREATE TABLE jobherd.rollup_gaps (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    from_at timestamptz NOT NULL,
    to_at   timestamptz NOT NULL,
    seen    pg_snapshot,                                -- do not count what this one saw; null: nothing is counted yet
    until   pg_snapshot NOT NULL                        -- count what this one saw
);
COMMENT ON TABLE jobherd.rollup_gaps IS
    'Time that is not counted yet: a run counts only a part of a long time.';

-- Returns the host of `ran_on`: "host/pid", "host/pid via host" or "host via host". Null: it never started.
CREATE FUNCTION jobherd.host_of(ran_on text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT split_part(split_part(ran_on, '/', 1), ' via ', 1) $$;

-- Adds what finished from from_at on and before to_at, and of the jobs `among` what finished before
-- `early`: as far as the snapshot `until` saw it and `seen` did not. Returns the number of jobs and failed
-- attempts. A job that fails at every attempt would otherwise be in no chart until its last one, a day
-- later with 9 attempts 3 hours apart. Plans: sorting many rows to
-- group them costs as much as all else, so they are hashed. With sorting off, a plan looks so
-- expensive that the server would compile it, for seconds each time: so jit is off. Compares the age
-- of a transaction and not its number: that is an integer, and there are many rows.
CREATE FUNCTION jobherd.count_ended(
    from_at timestamptz, to_at timestamptz, seen pg_snapshot, until pg_snapshot, among bigint[], early timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
SET enable_bitmapscan = on
SET enable_seqscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    seen_age   CONSTANT integer   := age(pg_snapshot_xmax(seen)::xid);  -- as old, or younger: not seen
    seen_open  CONSTANT integer[] := ARRAY(SELECT age(x::xid) FROM pg_snapshot_xip(seen) AS x);
    until_age  CONSTANT integer   := age(pg_snapshot_xmax(until)::xid);
    until_open CONSTANT integer[] := ARRAY(SELECT age(x::xid) FROM pg_snapshot_xip(until) AS x);
    counted    bigint;
BEGIN
    WITH ended AS (
        SELECT h.kind, h.queue, h.ran_on, h.state, h.error_code, h.started_at, h.run_at, h.finished_at, h.usage, h.id,
               age(h.xmin) AS age
          FROM jobherd.history h
         WHERE h.finished_at >= from_at AND h.finished_at < to_at
         UNION ALL
        SELECT h.kind, h.queue, h.ran_on, h.state, h.error_code, h.started_at, h.run_at, h.finished_at, h.usage, h.id,
               age(h.xmin)
          FROM jobherd.history h
         WHERE h.id = ANY (among) AND h.finished_at < early
    ), timed AS (
        SELECT date_bin('1 minute', e.finished_at, '2000-01-01 00:00:00+00') AS at, e.kind, e.state, e.error_code,
               e.finished_at, e.id, e.usage, e.queue, jobherd.host_of(e.ran_on) AS host,
               date_part('epoch', e.finished_at - e.started_at) AS ran,
               CASE WHEN e.started_at > e.run_at THEN date_part('epoch', e.started_at - e.run_at)
                    WHEN e.started_at IS NOT NULL THEN 0 END AS waited
          FROM ended e
         WHERE (seen IS NULL OR e.age <= seen_age OR e.age = ANY (seen_open)) AND e.age > until_age
           AND e.age <> ALL (until_open)
        OFFSET 0  -- otherwise each duration is calculated again wherever it is used
    ), bounds AS MATERIALIZED (
        SELECT array_agg(0.00001 * power(2::double precision, n / 4.0::double precision) ORDER BY n) AS of
          FROM generate_series(0, 147) AS n
    ), again AS MATERIALIZED (
        SELECT date_bin('1 minute', a.finished_at, '2000-01-01 00:00:00+00') AS at,
               coalesce(a.kind,
                        (SELECT s.kind FROM jobherd.scheduled s WHERE s.id = a.job),
                        (SELECT w.kind FROM jobherd.waiting w WHERE w.id = a.job LIMIT 1),
                        (SELECT h.kind FROM jobherd.history h WHERE h.id = a.job LIMIT 1),
                        (SELECT j.kind FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
                          WHERE j.id = a.job LIMIT 1)) AS kind,
               jobherd.host_of(a.ran_on) AS host, count(*) AS attempts
          FROM (SELECT t.job, t.kind, t.ran_on, t.finished_at, t.outcome, age(t.xmin) AS age
                  FROM jobherd.attempts t
                 WHERE t.finished_at >= from_at AND t.finished_at < to_at
                 UNION ALL
                SELECT t.job, t.kind, t.ran_on, t.finished_at, t.outcome, age(t.xmin)
                  FROM jobherd.attempts t
                 WHERE t.job = ANY (among) AND t.finished_at < early) AS a
         WHERE (seen IS NULL OR a.age <= seen_age OR a.age = ANY (seen_open)) AND a.age > until_age
           AND a.age <> ALL (until_open) AND a.outcome IN ('retry', 'lost')
         GROUP BY 1, 2, 3
    ), summed AS MATERIALIZED (
        SELECT t.at, t.kind, t.queue, t.host, t.state, t.error_code,
               width_bucket(t.ran, (SELECT of FROM bounds)) AS ran_bucket,
               width_bucket(t.waited, (SELECT of FROM bounds)) AS waited_bucket,
               count(*) AS jobs, coalesce(sum(t.ran), 0) AS ran, coalesce(sum(t.waited), 0) AS waited,
               coalesce(sum(CASE WHEN t.usage IS NOT NULL
                                 THEN coalesce((t.usage ->> 'cpu_user')::double precision, 0)
                                      + coalesce((t.usage ->> 'cpu_system')::double precision, 0)
                                 WHEN t.ran < 0.005 THEN t.ran END), 0) AS cpu,
               max(CASE WHEN t.usage IS NOT NULL THEN (t.usage ->> 'max_rss')::bigint END) AS memory,
               max(t.finished_at) AS last_at, max(t.id) AS last_job
          FROM timed t
         GROUP BY t.at, t.kind, t.queue, t.host, t.state, t.error_code, ran_bucket, waited_bucket
    ), slices AS (
        INSERT INTO jobherd.rollup AS r (at, kind, step, completed, failed, cancelled, expired, started, ran, waited,
                                         cpu, memory, retried)
        SELECT s.at, s.kind, 60,
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'completed'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'failed'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'cancelled'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'expired'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.ran_bucket IS NOT NULL), 0), sum(s.ran), sum(s.waited), sum(s.cpu),
               max(s.memory), sum(s.attempts)
          FROM (SELECT t.at, t.kind, t.state, t.ran_bucket, t.jobs, t.ran, t.waited, t.cpu, t.memory, 0 AS attempts FROM summed t
                UNION ALL
                SELECT g.at, g.kind, NULL, NULL, 0, 0, 0, 0, NULL, g.attempts FROM again g WHERE g.kind IS NOT NULL) AS s
         GROUP BY s.at, s.kind
         ORDER BY s.at, s.kind
        ON CONFLICT (at, kind, step) DO UPDATE
           SET completed = r.completed + excluded.completed, failed = r.failed + excluded.failed,
               cancelled = r.cancelled + excluded.cancelled,
               expired = r.expired + excluded.expired, started = r.started + excluded.started,
               ran = r.ran + excluded.ran,
               waited = r.waited + excluded.waited, cpu = r.cpu + excluded.cpu,
               memory = greatest(r.memory, excluded.memory), retried = r.retried + excluded.retried
    ), times AS (
        INSERT INTO jobherd.rollup_times AS r (at, kind, step, bucket, ran, waited)
        SELECT b.at, b.kind, 60, b.bucket, sum(b.ran), sum(b.waited)
          FROM (SELECT s.at, s.kind, s.ran_bucket AS bucket, s.jobs AS ran, 0 AS waited FROM summed s
                UNION ALL
                SELECT s.at, s.kind, s.waited_bucket, 0, s.jobs FROM summed s) AS b
         WHERE b.bucket IS NOT NULL
         GROUP BY b.at, b.kind, b.bucket
         ORDER BY b.at, b.kind, b.bucket
        ON CONFLICT (at, kind, step, bucket) DO UPDATE
            SET ran = r.ran + excluded.ran, waited = r.waited + excluded.waited
    ), failures AS (
        INSERT INTO jobherd.rollup_failures AS r (at, kind, step, state, code, jobs, last_at, last_job)
        SELECT s.at, s.kind, 60, s.state, coalesce(s.error_code, ''), sum(s.jobs), max(s.last_at), max(s.last_job)
          FROM summed s
         WHERE s.state <> 'completed'
         GROUP BY s.at, s.kind, s.state, coalesce(s.error_code, '')
         ORDER BY s.at, s.kind, s.state, coalesce(s.error_code, '')
        ON CONFLICT (at, kind, step, state, code) DO UPDATE
           SET jobs = r.jobs + excluded.jobs, last_at = greatest(r.last_at, excluded.last_at),
               last_job = greatest(r.last_job, excluded.last_job)
    ), scopes AS (
        INSERT INTO jobherd.rollup_scopes AS r (at, scope, name, step, completed, failed, cancelled, expired, started, ran,
                                                waited, retried)
        SELECT s.at, s.scope, s.name, 60,
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'completed'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'failed'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'cancelled'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.state = 'expired'), 0),
               coalesce(sum(s.jobs) FILTER (WHERE s.ran_bucket IS NOT NULL), 0), sum(s.ran), sum(s.waited), sum(s.attempts)
          FROM (SELECT t.at, 'queue' AS scope, t.queue AS name, t.state, t.ran_bucket, t.jobs, t.ran, t.waited, 0 AS attempts
                  FROM summed t
                UNION ALL
                SELECT t.at, 'host', t.host, t.state, t.ran_bucket, t.jobs, t.ran, t.waited, 0 FROM summed t
                UNION ALL
                SELECT g.at, 'host', g.host, NULL, NULL, 0, 0, 0, g.attempts FROM again g WHERE g.kind IS NOT NULL) AS s
         WHERE s.name IS NOT NULL
         GROUP BY s.at, s.scope, s.name
         ORDER BY s.at, s.scope, s.name
        ON CONFLICT (at, scope, name, step) DO UPDATE
           SET completed = r.completed + excluded.completed, failed = r.failed + excluded.failed,
               cancelled = r.cancelled + excluded.cancelled, expired = r.expired + excluded.expired,
               started = r.started + excluded.started, ran = r.ran + excluded.ran, waited = r.waited + excluded.waited,
               retried = r.retried + excluded.retried
    )
    SELECT (SELECT coalesce(sum(s.jobs), 0) FROM summed s) + (SELECT coalesce(sum(g.attempts), 0) FROM again g) INTO counted;
    RETURN counted;
END $$;
