-- What people who look for jobs need, and what they do to many of them.

-- One summary of each 128 pages of the past says which ends, kinds, queues, states, tenants and error codes stand in them, and which stretches
-- of 4,096 ids: who looks for a rare kind among ten million jobs reads the few pages that can hold it. A settlement pays for it what it paid for
-- the summary of the ends alone, which this replaces: one look into the index for each row. The stretch is an expression so that no plan
-- can take the b-tree of the ids for it, and read them all (page/list_stretch.sql).
DROP INDEX jobherd.history_by_end;
CREATE INDEX history_in_brief ON jobherd.history USING brin (
    finished_at,
    (id >> 12) int8_minmax_multi_ops,
    state text_bloom_ops (n_distinct_per_range = 16, false_positive_rate = 0.001),
    kind text_bloom_ops (n_distinct_per_range = 64, false_positive_rate = 0.001),
    queue text_bloom_ops (n_distinct_per_range = 64, false_positive_rate = 0.001),
    ((extras).tenant) text_bloom_ops (n_distinct_per_range = 128, false_positive_rate = 0.001),
    error_code text_bloom_ops (n_distinct_per_range = 32, false_positive_rate = 0.001)
) WITH (autosummarize = on);

-- An index of an empty table has a summary of its first 128 pages from the start, and each row that is put there writes it anew: hundreds of bytes
-- of log for every job until that range is full. Without it the range is summarised when it is full, as all others are.
CREATE FUNCTION jobherd.leave_first_range(part regclass) RETURNS void LANGUAGE sql AS $$
    SELECT brin_desummarize_range(i.indexrelid, 0)
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
     WHERE i.indrelid = part AND a.amname = 'brin' AND c.relkind = 'i'
$$;
SELECT jobherd.leave_first_range(inhrelid) FROM pg_inherits WHERE inhparent = 'jobherd.history'::regclass AND pg_relation_size(inhrelid) < 128 * 8192;
CREATE OR REPLACE FUNCTION jobherd.keep_partitions(ahead integer, most integer DEFAULT NULL, OUT made integer, OUT dropped integer) LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part   text;
    day    date;
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
                    WHERE to_regclass('jobherd.' || parent || '_' || to_char(current_date + d, 'YYYYMMDD')) IS NULL) THEN
            EXECUTE format('LOCK TABLE ONLY jobherd.%I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        FOR day IN SELECT current_date + d FROM generate_series(1, ahead) AS d LOOP
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
               AND c.relname ~ ('^' || parent || '_[0-9]{8}$') AND right(c.relname, 8) <= to_char(current_date, 'YYYYMMDD')
        LOOP
            EXECUTE format('DROP TABLE jobherd.%I', part);
            dropped := dropped + 1;
        END LOOP;
        EXECUTE format('DELETE FROM jobherd.%I WHERE drop_on <= current_date', parent || '_default');
    END LOOP;
END $$;

-- Delete a job of the past, with its attempts and logs: 'deleted'. One that waits or runs is left alone, and where it is, is answered; null if
-- there is none. For operators: a tenant's role may not.
CREATE FUNCTION jobherd.delete(job_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.history WHERE id = job_id;
        IF FOUND THEN
            DELETE FROM jobherd.attempts WHERE job = job_id;
            DELETE FROM jobherd.logs WHERE job = job_id;
            PERFORM jobherd.note_unless_noted(actor, 'delete', jsonb_build_object('job', job_id), reason);
            RETURN 'deleted';
        END IF;
        SELECT state INTO answer FROM jobherd.jobs WHERE id = job_id;
        EXIT WHEN FOUND AND answer NOT IN ('completed', 'failed', 'cancelled', 'expired');  -- else it has just ended, or moves: look again
    END LOOP;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.delete_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.finished_at IS NULL THEN
        PERFORM jobherd.cancel(OLD.id);
    ELSE
        PERFORM jobherd.delete(OLD.id);
    END IF;
    RETURN OLD;
END $$;

-- Give a waiting job another priority; answers the state it waits in. A row that is being claimed is locked, and gone when the claim is done: then
-- nothing is changed and 'running' is answered, or the state it ended in; null if there is no such job. Its next attempts keep the priority.
CREATE FUNCTION jobherd.reprioritize(job_id bigint, priority integer, actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    wanted CONSTANT integer := priority;
    why    CONSTANT text := reason;
    answer text;
    before smallint;
BEGIN
    IF wanted IS NULL OR wanted NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'jobherd.reprioritize: priority % is not a whole number from -32768 to 32767', coalesce(wanted::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The lower, the sooner; 0 is the default.';
    END IF;
    FOR look IN 1..3 LOOP
        SELECT r.priority INTO before FROM jobherd.ready r WHERE r.id = job_id FOR UPDATE;
        IF FOUND THEN
            UPDATE jobherd.ready r SET priority = wanted WHERE r.id = job_id RETURNING CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END INTO answer;
        ELSE
            SELECT s.priority INTO before FROM jobherd.scheduled s WHERE s.id = job_id FOR UPDATE;
            IF FOUND THEN
                UPDATE jobherd.scheduled s SET priority = wanted WHERE s.id = job_id
                RETURNING CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END INTO answer;
            END IF;
        END IF;
        IF answer IS NOT NULL THEN
            PERFORM jobherd.note_unless_noted(actor, 'reprioritize', jsonb_build_object('job', job_id, 'priority', wanted, 'before', before), why);
            RETURN answer;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;  -- it has moved from one table to the other meanwhile
    END LOOP;
    RETURN answer;
END $$;

-- Give a waiting job another time; answers the state it waits in now. A time that has come makes it ready at once. Otherwise as reprioritize.
CREATE FUNCTION jobherd.reschedule(job_id bigint, run_at timestamptz, actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    due    CONSTANT timestamptz := run_at;
    why    CONSTANT text := reason;
    job    jobherd.ready;
    answer text;
BEGIN
    IF due IS NULL OR NOT isfinite(due) OR due > '9000-01-01' OR due < '1900-01-01' THEN
        RAISE EXCEPTION 'jobherd.reschedule: run_at % is not a time from 1900 to 9000', coalesce(due::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example now() + interval ''10 minutes''.';
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.ready r WHERE r.id = job_id RETURNING r.* INTO job;
        IF NOT FOUND THEN
            DELETE FROM jobherd.scheduled s WHERE s.id = job_id
            RETURNING s.id, s.created_at, s.run_at, s.good_until, s.timeout, s.last_error, s.priority, s.attempts, s.max_attempts, s.crashes, s.alone,
                      s.queue, s.kind, s.payload, s.extras INTO job;
        END IF;
        IF job.id IS NOT NULL THEN
            job.run_at := due;
            -- It is put in anew and not updated: who sleeps until the first one is due hears of rows that arrive.
            IF due > clock_timestamp() THEN
                INSERT INTO jobherd.scheduled (id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone,
                                               queue, kind, payload, extras) SELECT job.*;
                answer := 'scheduled';
            ELSE
                INSERT INTO jobherd.ready SELECT job.*;
                answer := 'ready';
            END IF;
            PERFORM jobherd.note_unless_noted(actor, 'reschedule', jsonb_build_object('job', job_id, 'run_at', due), why);
            RETURN CASE WHEN job.attempts > 0 THEN 'retrying' ELSE answer END;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;
    END LOOP;
    RETURN answer;
END $$;

-- What is being done to many jobs, and was lately: the page works on it in slices, each a transaction that also says here how far it came. So
-- whoever goes on after a web child has died does nothing twice. reached: jobs with this id and higher ones are done with.
CREATE TABLE jobherd.bulks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action     text COLLATE "C" NOT NULL,
    value      text,                                -- the priority, or the time
    wanted     jsonb NOT NULL,                      -- which jobs: a filter, or {"ids": [...]}
    actor      text NOT NULL,
    reason     text,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expected   integer NOT NULL,                    -- as many matched when it was asked for,
    at_least   boolean NOT NULL,                    -- or more
    reached    bigint NOT NULL,
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    done       integer NOT NULL DEFAULT 0,
    refused    jsonb NOT NULL DEFAULT '{}',         -- how many, by why
    stopped_by text,
    ended_at   timestamptz,
    error      text,
    CONSTRAINT bulks_action_is_known CHECK (action IN ('retry', 'cancel', 'delete', 'reprioritize', 'reschedule')),
    CONSTRAINT bulks_value_is_given CHECK ((value IS NOT NULL) = (action IN ('reprioritize', 'reschedule')))
);
CREATE INDEX bulks_going_on ON jobherd.bulks (id) WHERE ended_at IS NULL;
