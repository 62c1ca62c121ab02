-- Pauses and concurrency limits of queues and kinds (table `gates`: one row for each queue or kind with a rule).
--
-- The rows of `running` are the used slots of a limit. The insert of a claim takes a slot, and the
-- delete of that row frees it, whichever process deletes it. Nothing else is stored, so no slot can
-- leak. A claim under a limit counts and inserts under the lock of the limit. The statement that
-- counts begins after the lock is held: otherwise it would not see a job that was claimed meanwhile
-- (tests/models/slot.pml). A job under a limit is claimed alone, in a row of its own.
--
-- The row of a queue or kind in `gates` also holds its other rules, which a claim finds with it: the rate limit
-- (14_rates.sql), and the rules for the partitions of a queue (15_partition_rules.sql). What removes one rule
-- leaves the others.

CREATE TABLE jobherd.gates (
    scope        text COLLATE "C" NOT NULL,             -- queue, kind or all
    name         text COLLATE "C" NOT NULL,             -- of all: *
    paused_at    timestamptz,
    paused_by    text,
    reason       text,
    resume_at    timestamptz,                           -- when a maintenance process ends the pause
    max_running  integer,
    limited_at   timestamptz,
    limited_by   text,                                  -- @handler: what the handler declares
    seen_at      timestamptz,                           -- when a maintenance process saw the committed limit
    rate         integer,                               -- jobs that may start
    per          double precision,                      -- in so many seconds
    burst        integer,                               -- and so many at once after a pause
    rated_by     text,                                  -- @handler: what the handler declares
    turns        jsonb,                                 -- weights of partitions; null: they take no turns
    each_running integer,                               -- jobs of each partition that may run
    in_order     boolean,                               -- a partition also waits for a retry of an earlier job
    divided_by   text,                                  -- who set turns or each_running
    each_rate    integer,                               -- jobs of each partition that may start
    each_per     double precision,                      -- in so many seconds
    each_burst   integer,                               -- and so many at once after a pause
    PRIMARY KEY (scope, name),
    CONSTRAINT gates_scope_is_known CHECK (scope IN ('queue', 'kind', 'all') AND (scope = 'all') = (name = '*')),
    CONSTRAINT gates_say_something CHECK (num_nonnulls(paused_at, max_running, rate, turns, each_running) > 0),
    CONSTRAINT gates_resume_what_is_paused CHECK (resume_at IS NULL OR (paused_at IS NOT NULL AND isfinite(resume_at))),
    CONSTRAINT gates_limit_is_a_count CHECK (max_running >= 1 AND (max_running IS NULL) = (limited_at IS NULL)),
    -- A bucket that takes a year to fill is a mistake, and its microseconds must fit into a bigint.
    CONSTRAINT gates_rate_is_whole CHECK (
        num_nulls(rate, per, burst, rated_by) IN (0, 4) AND rate BETWEEN 1 AND 1000000 AND per > 0
        AND burst BETWEEN 1 AND 1000000 AND burst * per / rate <= 31622400 AND (scope <> 'all' OR rate IS NULL)),
    CONSTRAINT gates_divide_queues CHECK (
        (scope = 'queue' OR num_nonnulls(turns, each_running, in_order) = 0) AND jsonb_typeof(turns) = 'object'
        AND each_running >= 1 AND (in_order IS NULL) = (each_running IS NULL) AND (each_running = 1 OR in_order IS NOT TRUE)),
    -- A partition with a rate is claimed job by job, as under a limit of running jobs. So there always is such a limit:
    -- 2147483647 if none was set (show_each).
    CONSTRAINT gates_each_rate_is_whole CHECK (
        num_nulls(each_rate, each_per, each_burst) IN (0, 3) AND (each_rate IS NULL OR each_running IS NOT NULL)
        AND each_rate BETWEEN 1 AND 1000000 AND each_per > 0 AND each_burst BETWEEN 1 AND 1000000
        AND each_burst * each_per / each_rate <= 31622400)
);
COMMENT ON TABLE jobherd.gates IS 'Paused queues and kinds, their limits, and the rules for their partitions.';

-- Supervisors wake their idle workers, and release what is claimed and not started.
CREATE FUNCTION jobherd.wake_paused()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM jobherd.notify('jobherd_jobs', '@pause');
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT OR UPDATE OR DELETE ON jobherd.gates FOR EACH ROW
    EXECUTE FUNCTION jobherd.wake_paused();

-- A new limit counts all claims until a maintenance process has seen it (count_running).
CREATE FUNCTION jobherd.limit_from_here()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.seen_at := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER limited BEFORE UPDATE OF limited_at ON jobherd.gates FOR EACH ROW
    WHEN (NEW.limited_at IS DISTINCT FROM OLD.limited_at) EXECUTE FUNCTION jobherd.limit_from_here();

-- Returns how many jobs of a queue or kind run. Jobs claimed before the limit was visible are in
-- batches. These are counted as well until 10 s after a maintenance process has seen the limit:
-- no claim that did not see it lasts longer. Before it is seen, all batches count: a commit may wait
-- for a synchronous standby. In PL/pgSQL, which keeps its plans: planning for each limit took 70 us.
CREATE FUNCTION jobherd.count_running(scope text, name text, limited_at timestamptz)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    until CONSTANT timestamptz := coalesce(
        (SELECT g.seen_at FROM jobherd.gates g WHERE g.scope = count_running.scope AND g.name = count_running.name)
        + interval '10 s', 'infinity');
BEGIN
    IF scope = 'queue' THEN
        RETURN (SELECT count(*) FROM jobherd.running r
                 WHERE r.queue = count_running.name AND r.limited_kind IS NOT NULL)
             + (SELECT coalesce(sum(cardinality(r.jobs)), 0) FROM jobherd.running r
                 WHERE r.limited_kind IS NULL AND r.claimed_at < until AND r.queue = count_running.name);
    END IF;
    RETURN (SELECT count(*) FROM jobherd.running r WHERE r.limited_kind = count_running.name)
         + (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE r.limited_kind IS NULL AND r.claimed_at < until AND j.kind = count_running.name);
END $$;

-- Returns the position of a queue in the list of the served ones, which may have prefixes
-- ("batch*"): its own name counts before them. Null: it is not served.
CREATE FUNCTION jobherd.rank_queue(queue text, served text[])
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN served IS NULL THEN 0 ELSE
        coalesce(array_position(served, queue),
                 (SELECT min(i) FROM generate_subscripts(served, 1) AS i
                   WHERE right(served[i], 1) = '*' AND starts_with(queue, left(served[i], -1)))) END
$$;

-- Returns the scope and name of a queue or kind, or raises an error that says what is wrong with it.
CREATE FUNCTION jobherd.gate_of(what text, queue text, kind text, OUT scope text, OUT name text)
RETURNS record
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF (queue IS NULL) = (kind IS NULL) THEN
        RAISE EXCEPTION 'jobherd.%: give a queue or a kind%', what,
            CASE WHEN queue IS NULL THEN '' ELSE ', not both' END
            USING ERRCODE = 'invalid_parameter_value', 
                  HINT = 'For example: SELECT jobherd.' || what || '(kind => ''mail:receipt'', ...).';
    END IF;
    IF queue = '*' THEN
        scope := 'all';
    ELSIF queue IS NOT NULL THEN
        scope := 'queue';
        IF queue !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(queue) > 63 THEN
            RAISE EXCEPTION 'jobherd.%: % is not a queue name', what, quote_literal(left(queue, 120))
                USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'Lower-case letters, digits and _ . - , at most 63 characters.';
        END IF;
    ELSE
        scope := 'kind';
        IF kind !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(kind) > 100 THEN
            RAISE EXCEPTION 'jobherd.%: kind % is not a name like "mail:receipt"', what, quote_literal(left(kind, 120))
                USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'Lower-case letters, digits and _ . : - , at most 100 characters.';
        END IF;
    END IF;
    name := coalesce(queue, kind);
END $$;

-- Returns how the audit log names a queue, a kind or everything.
CREATE FUNCTION jobherd.gate_as_target(scope text, name text)
RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object(scope, CASE WHEN scope = 'all' THEN 'everything' ELSE name END)
$$;

CREATE FUNCTION jobherd.pause(
    queue text DEFAULT NULL, reason text DEFAULT NULL, kind text DEFAULT NULL, resume_at timestamptz DEFAULT NULL,
    actor text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    gate   record;
    paused boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('pause', queue, kind);
    IF pause.resume_at <= clock_timestamp() OR NOT isfinite(pause.resume_at) THEN
        RAISE EXCEPTION 'jobherd.pause: resume_at % is not in the future', pause.resume_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to pause until it is resumed.';
    END IF;
    SELECT g.paused_at IS NOT NULL INTO paused FROM jobherd.gates g 
     WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    INSERT INTO jobherd.gates AS g (scope, name, paused_at, paused_by, reason, resume_at)
    VALUES (gate.scope, gate.name, clock_timestamp(), coalesce(actor, session_user), pause.reason, pause.resume_at)
    ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
       SET paused_at = coalesce(g.paused_at, excluded.paused_at), paused_by = excluded.paused_by,
           reason = coalesce(excluded.reason, g.reason), resume_at = excluded.resume_at;
    PERFORM jobherd.note_unless_noted(pause.actor, 'pause',
        jobherd.gate_as_target(gate.scope, gate.name)
            || jsonb_strip_nulls(jsonb_build_object('resume_at', pause.resume_at)), pause.reason);
    RETURN NOT coalesce(paused, false);
END $$;
COMMENT ON FUNCTION jobherd.pause(text, text, text, timestamptz, text) IS
    'Pauses a queue, a kind, or everything (''*'' for the queue): no jobs of it are claimed; running jobs '
    'continue. If it is already paused, the new reason and time apply. Returns true if it was not paused '
    'before. SELECT jobherd.pause(''mail'', ''the provider is down'', resume_at => now() + interval ''1 '
    'hour'');';

-- Race: the row is locked first. Otherwise a limit that is set at the same time could make neither
-- the UPDATE nor the DELETE match, and the queue would stay paused. The other rules of the queue or
-- kind stay.
CREATE FUNCTION jobherd.resume(
    queue text DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    gate record;
    did  boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('resume', queue, kind);
    -- no other session changes its limit now
    PERFORM FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    UPDATE jobherd.gates g SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL
     WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NOT NULL
       AND num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0;
    did := FOUND;
    IF NOT did THEN
        DELETE FROM jobherd.gates g
         WHERE g.scope = gate.scope AND g.name = gate.name 
           AND num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) = 0;
        did := FOUND;
    END IF;
    IF did THEN
        PERFORM jobherd.note_unless_noted(resume.actor, 'resume', jobherd.gate_as_target(gate.scope, gate.name),
                                          resume.reason);
    END IF;
    RETURN did;
END $$;
COMMENT ON FUNCTION jobherd.resume(text, text, text, text) IS
    'Resumes a queue, a kind, or everything (''*'' for the queue). Returns true if it was paused.';

CREATE FUNCTION jobherd.set_limit(
    queue text DEFAULT NULL, max_running integer DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL
)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    gate   record;
    before integer;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('set_limit', queue, kind);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.set_limit: everything together has no limit'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Limit a queue or a kind, or start fewer workers.';
    ELSIF set_limit.max_running < 1 THEN
        RAISE EXCEPTION 'jobherd.set_limit: max_running % is not a number from 1', set_limit.max_running
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'To let nothing run, pause it: SELECT jobherd.pause(...).';
    END IF;
    SELECT g.max_running INTO before FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    IF set_limit.max_running IS NOT NULL THEN
        INSERT INTO jobherd.gates AS g (scope, name, max_running, limited_at, limited_by)
        VALUES (gate.scope, gate.name, set_limit.max_running, clock_timestamp(), coalesce(actor, session_user))
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET max_running = excluded.max_running, limited_at = coalesce(g.limited_at, excluded.limited_at),
               limited_by = excluded.limited_by;
    ELSE
        UPDATE jobherd.gates g SET max_running = NULL, limited_at = NULL, limited_by = NULL
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NOT NULL
           AND num_nonnulls(g.paused_at, g.rate, g.turns, g.each_running) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = gate.scope AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.rate, g.turns, g.each_running) = 0;
    END IF;
    IF set_limit.max_running IS DISTINCT FROM before THEN
        PERFORM jobherd.note_unless_noted(set_limit.actor, 'limit',
            jobherd.gate_as_target(gate.scope, gate.name)
                || jsonb_build_object('max_running', set_limit.max_running, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
COMMENT ON FUNCTION jobherd.set_limit(text, integer, text, text) IS
    'Sets how many jobs of a queue or a kind may run at a time on all hosts; null removes the limit. '
    'Running jobs above a new limit continue. Returns the previous limit. SELECT '
    'jobherd.set_limit(''media'', 10); SELECT jobherd.set_limit(kind => ''report:year'', max_running => 3);';
