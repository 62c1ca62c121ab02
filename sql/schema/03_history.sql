-- Finished jobs, their attempts and what these printed. Also the progress that running jobs report.
-- `history` and `attempts` are partitioned by the UTC day from which a row may be dropped, so dropping
-- is DROP TABLE and leaves no dead rows.

CREATE TABLE jobherd.history (
    id           bigint      NOT NULL,
    created_at   timestamptz NOT NULL,
    run_at       timestamptz NOT NULL,
    started_at   timestamptz,                           -- null: it never started
    finished_at  timestamptz NOT NULL,
    drop_on      date        NOT NULL,                  -- the UTC day from which the row may be dropped
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
    ran_on       text,                                  -- host/pid of the worker
    usage        jsonb,                                 -- last attempt: CPU seconds, peak memory, error class
    post_mortem  jsonb,                                 -- how its process died, if it did
    progress     jsonb,
    extras       jobherd.extras,
    timeout      double precision,                      -- a retry runs with the same one
    end_noted    boolean,                               -- its end is in a row of `ends` with others: see note_end()
    CONSTRAINT history_state_is_terminal CHECK (state IN ('completed', 'failed', 'cancelled', 'expired')),
    CONSTRAINT history_failed_says_why CHECK (state <> 'failed' OR error IS NOT NULL),
    CONSTRAINT history_ended_after_it_started CHECK (started_at <= finished_at)
) PARTITION BY RANGE (drop_on);
COMMENT ON TABLE jobherd.history IS 'Finished jobs, kept for as many days as their kind says.';
-- Not unique: a partitioned table can only have a unique index that includes the day.
CREATE INDEX history_by_id ON jobherd.history (id);
-- Finds jobs that did not complete. Cost: completed jobs, nearly all, have no entry in it.
CREATE INDEX history_troubled ON jobherd.history (id) WHERE state <> 'completed';
CREATE INDEX history_parent ON jobherd.history (((extras).parent_id), id) WHERE (extras).parent_id IS NOT NULL;
CREATE INDEX history_of_flow ON jobherd.history (((extras).flow), id) WHERE (extras).flow > 0;
-- One summary of each 128 pages: which ends, ids (in ranges of 4,096), states, kinds, queues,
-- tenants and error codes are in them. A search for a rare kind among ten million jobs reads only
-- the pages that can hold it (dashboard/list_finished_ranges). Cost: a b-tree of the ends would write a page and
-- 60 bytes of log for each job. The range is an expression so that no plan reads all of
-- history_by_id for it.
CREATE INDEX history_in_brief ON jobherd.history USING brin (
    finished_at, (id >> 12) int8_minmax_multi_ops,
    state text_bloom_ops (n_distinct_per_range = 16, false_positive_rate = 0.001),
    kind text_bloom_ops (n_distinct_per_range = 64, false_positive_rate = 0.001),
    queue text_bloom_ops (n_distinct_per_range = 64, false_positive_rate = 0.001),
    ((extras).tenant) text_bloom_ops (n_distinct_per_range = 128, false_positive_rate = 0.001),
    error_code text_bloom_ops (n_distinct_per_range = 32, false_positive_rate = 0.001)
) WITH (autosummarize = on);

CREATE TABLE jobherd.attempts (
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
    post_mortem jsonb,
    kind        text COLLATE "C"                        -- for the rollup; null: the supervisor died, so the job is looked up
) PARTITION BY RANGE (drop_on);
COMMENT ON TABLE jobherd.attempts IS
    'Attempts after which their job did not finish: another attempt followed.';
CREATE INDEX attempts_by_job ON jobherd.attempts (job, token);
CREATE INDEX attempts_in_brief ON jobherd.attempts USING brin (finished_at) WITH (autosummarize = on);

-- A row whose day has no partition yet goes here. Otherwise it would be rejected: a fleet whose
-- maintenance process was away for weeks must still be able to write outcomes.
CREATE TABLE jobherd.history_default PARTITION OF jobherd.history DEFAULT;
CREATE TABLE jobherd.attempts_default PARTITION OF jobherd.attempts DEFAULT;

-- Replication (see `ready`): without a unique index a row is identified by all its columns. Each
-- partition has its own identity, and the parent has one for a publication through it.
ALTER TABLE jobherd.history REPLICA IDENTITY FULL;
ALTER TABLE jobherd.history_default REPLICA IDENTITY FULL;
ALTER TABLE jobherd.attempts REPLICA IDENTITY FULL;
ALTER TABLE jobherd.attempts_default REPLICA IDENTITY FULL;

-- Separate from history and attempts: most jobs print nothing, and the statement that settles those
-- does not touch this table.
CREATE TABLE jobherd.logs (
    job     bigint      NOT NULL,
    token   bigint      NOT NULL,                       -- of the attempt's claim, as in history and attempts
    attempt smallint    NOT NULL,
    at      timestamptz NOT NULL,                       -- when the attempt ended
    drop_on date        NOT NULL,                       -- the UTC day from which the row may be dropped
    output  text        NOT NULL,                       -- the last part of it
    entries jsonb,                                      -- what job.log(key, ...) wrote, in order
    PRIMARY KEY (job, token)
);
COMMENT ON TABLE jobherd.logs IS 'What a handler printed and logged in an attempt.';
CREATE INDEX logs_by_day ON jobherd.logs (drop_on);

CREATE TABLE jobherd.progress (
    job      bigint      PRIMARY KEY,
    token    bigint      NOT NULL,
    progress jsonb       NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.progress IS 'The progress that running jobs report.';

-- Removes the summary of the first 128 pages that the index of an empty table has. Cost: with it,
-- each row that is written there updates the summary, hundreds of bytes of log a row, until that
-- range is full. Without it the range is summarized when it is full, as all others are.
CREATE FUNCTION jobherd.leave_first_range(part regclass)
RETURNS void
LANGUAGE sql
AS $$
    SELECT brin_desummarize_range(i.indexrelid, 0)
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
     WHERE i.indrelid = part AND a.amname = 'brin' AND c.relkind = 'i'
$$;
SELECT jobherd.leave_first_range('jobherd.history_default');
SELECT jobherd.leave_first_range('jobherd.attempts_default');

-- Returns for how many days jobs are kept: as the kinds say, and by default.
CREATE FUNCTION jobherd.kept_days()
RETURNS SETOF integer
LANGUAGE sql STABLE
AS $$
    SELECT 7 UNION SELECT 30 UNION SELECT k.keep_completed FROM jobherd.kinds k UNION SELECT k.keep_failed FROM jobherd.kinds k
$$;

-- Creates the partitions from today to `ahead` days from now, at most `most`, and drops those whose day has
-- passed once none is missing. Run by maintenance processes, as the owner of the tables, by
-- maintenance/keep_partitions. Days are UTC days for writers and for droppers: a session's own days would drop
-- a row too early. A row that is kept for a day stays until that day has ended.
--
-- Order: the partitions that today's and tomorrow's outcomes need are made first, those of the days until which
-- the kinds keep their jobs. On a new database the others can wait until no job runs: 64 of them took a second
-- of processor time, and no worker could record outcomes meanwhile.
CREATE FUNCTION jobherd.keep_partitions(
    ahead integer, most integer DEFAULT NULL, OUT made integer, OUT dropped integer
)
RETURNS record
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent  text;
    part    text;
    day     date;
    today   CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    missing integer;
    urgent  CONSTANT boolean := EXISTS (SELECT FROM unnest('{history,attempts}'::text[]) AS t (name)
                                        CROSS JOIN generate_series(1, ahead - 1) AS d
                                         WHERE to_regclass('jobherd.' || t.name || '_'
                                                           || to_char(today + d, 'YYYYMMDD')) IS NULL)
                             OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                                         WHERE i.inhparent IN ('jobherd.history'::regclass, 'jobherd.attempts'::regclass)
                                           AND c.relname ~ '_[0-9]{8}$'
                                           AND right(c.relname, 8) < to_char(today - 1, 'YYYYMMDD'));
    -- The first `most` that are missing: their tables and days.
    parents text[];
    days    date[];
BEGIN
    made := 0;
    dropped := 0;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.keep_partitions')) THEN
        RETURN;  -- another maintenance process does it
    END IF;
    -- Attaching and dropping wait for each reader of the history, and settlements wait behind this session. A
    -- reader, such as a backup, may last for hours. So this waits only briefly, and is tried again later, as long
    -- as only the last day is missing, or the partition to drop was needed until yesterday.
    PERFORM set_config('lock_timeout', CASE WHEN urgent THEN '2s' ELSE '50ms' END, true);
    SELECT count(*), (array_agg(m.parent ORDER BY m.place))[:coalesce(most, count(*)::integer)],
           (array_agg(m.day ORDER BY m.place))[:coalesce(most, count(*)::integer)]
      INTO missing, parents, days
      FROM (SELECT t.name AS parent, today + d AS day,
                   row_number() OVER (ORDER BY d NOT IN (SELECT kept + later FROM jobherd.kept_days() AS kept
                                                              CROSS JOIN generate_series(0, 1) AS later),
                                               t.name DESC, d) AS place
              FROM unnest('{history,attempts}'::text[]) AS t (name) CROSS JOIN generate_series(1, ahead) AS d
             WHERE to_regclass('jobherd.' || t.name || '_' || to_char(today + d, 'YYYYMMDD')) IS NULL) AS m;
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        -- Race: a settlement that has chosen the default partition, and waits for the new one, would be rejected:
        -- the default partition must not hold its row any more. A reader that has listed the partitions, and waits
        -- for the default one, would miss the rows that have moved: a finished job would not exist. So the parent
        -- is locked.
        IF parent = ANY (parents) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT p.day FROM unnest(parents, days) AS p (name, day) WHERE p.name = parent LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            -- Rows that went to the default partition move first: otherwise the new one cannot be attached.
            EXECUTE format('CREATE TABLE jobherd.%I (LIKE jobherd.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                           part, parent);
            EXECUTE format('ALTER TABLE jobherd.%I REPLICA IDENTITY FULL', part);
            EXECUTE format('WITH moved AS (DELETE FROM jobherd.%I WHERE drop_on = %L RETURNING *)'
                           ' INSERT INTO jobherd.%I SELECT * FROM moved', parent || '_default', day, part);
            EXECUTE format('ALTER TABLE jobherd.%I ATTACH PARTITION jobherd.%I FOR VALUES FROM (%L) TO (%L)',
                           parent, part, day, day + 1);
            PERFORM jobherd.leave_first_range(('jobherd.' || part)::regclass);
            made := made + 1;
        END LOOP;
    END LOOP;
    IF made < missing THEN
        RETURN;
    END IF;
    FOREACH parent IN ARRAY '{history,attempts}'::text[] LOOP
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = ('jobherd.' || parent)::regclass
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) < to_char(today, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on < %L', parent || '_default', today);
    END LOOP;
END $$;

CREATE FUNCTION jobherd.delete(job_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text;
BEGIN
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.history WHERE id = job_id;
        IF FOUND THEN
            DELETE FROM jobherd.attempts WHERE job = job_id;
            DELETE FROM jobherd.logs WHERE job = job_id;
            DELETE FROM jobherd.steps WHERE job = job_id;
            PERFORM jobherd.note_unless_noted(actor, 'delete', jsonb_build_object('job', job_id), reason);
            RETURN 'deleted';
        END IF;
        SELECT state INTO answer FROM jobherd.jobs WHERE id = job_id;
        -- otherwise it has just finished, or moves: look again
        EXIT WHEN FOUND AND answer NOT IN ('completed', 'failed', 'cancelled', 'expired');
    END LOOP;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.delete(bigint, text, text) IS
    'Deletes a finished job with its attempts, logs and steps, and returns ''deleted''. Otherwise returns the '
    'state of the job, or null if the job does not exist. Not for tenants.';
