-- Rules for the partitions of a queue: fair turns, and a limit of each partition. They are in the row of `gates`, so
-- a claim finds them as it finds other limits, and workers of earlier versions are sent to claim_gated, which is in
-- the database.

ALTER TABLE jobherd.gates
    ADD COLUMN turns        jsonb,                      -- weights of partitions; null: they take no turns
    ADD COLUMN each_running integer,                    -- jobs of each partition that may run
    ADD COLUMN in_order     boolean,                    -- a partition also waits for a retry of an earlier job
    ADD COLUMN divided_by   text,                       -- who set turns or each_running
    DROP CONSTRAINT gates_say_something,
    ADD CONSTRAINT gates_say_something CHECK (num_nonnulls(paused_at, max_running, rate, turns, each_running) > 0),
    ADD CONSTRAINT gates_divide_queues CHECK (
        (scope = 'queue' OR num_nonnulls(turns, each_running, in_order) = 0) AND jsonb_typeof(turns) = 'object'
        AND each_running >= 1 AND (in_order IS NULL) = (each_running IS NULL) AND (each_running = 1 OR in_order IS NOT TRUE));

-- A column, not an index on `jobs`: otherwise no update of `jobs` would be HOT.
ALTER TABLE jobherd.running ADD COLUMN lane text COLLATE "C";  -- of a job that is claimed alone under such a limit
CREATE INDEX running_by_lane ON jobherd.running (queue, lane) WHERE lane IS NOT NULL;
CREATE INDEX scheduled_by_lane ON jobherd.scheduled (queue, lane)
    WHERE lane IS NOT NULL AND (attempts > 0 OR last_error IS NOT NULL);
CREATE INDEX parked_by_lane ON jobherd.parked (queue, lane, priority, id) WHERE lane IS NOT NULL;
CREATE INDEX parked_by_kind_and_lane ON jobherd.parked (kind, queue, lane, priority, id);

CREATE FUNCTION jobherd.show_weights(turns jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN turns IS NOT NULL
                THEN (SELECT coalesce(jsonb_object_agg(w.value ->> 'name', w.value -> 'weight'), '{}') FROM jsonb_each(turns) AS w) END
$$;

CREATE FUNCTION jobherd.fair(
    queue text, weights jsonb DEFAULT '{}', off boolean DEFAULT false, actor text DEFAULT NULL
)
RETURNS jsonb
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    who    CONSTANT text := coalesce(actor, session_user);
    gate   record;
    before jsonb;
    after  jsonb;
BEGIN
    SELECT * INTO gate FROM jobherd.queue_of('fair', queue);
    IF weights IS NULL OR jsonb_typeof(weights) <> 'object' OR EXISTS (
           SELECT FROM jsonb_each_text(weights) AS w
            WHERE w.value IS NULL OR w.value !~ '^[1-9][0-9]{0,2}$' OR length(w.key) NOT BETWEEN 1 AND 200) THEN
        RAISE EXCEPTION 'jobherd.fair: weights % are not numbers from 1 to 999 by partition', coalesce(left(weights::text, 120), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT jobherd.fair(''crm'', ''{"acme": 3}'');';
    END IF;
    SELECT g.turns INTO before FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = gate.name FOR UPDATE;
    IF off THEN
        UPDATE jobherd.gates g SET turns = NULL, divided_by = CASE WHEN g.each_running IS NOT NULL THEN g.divided_by END
         WHERE g.scope = 'queue' AND g.name = gate.name AND g.turns IS NOT NULL
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.each_running) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = 'queue' AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.each_running) = 0;
    ELSE
        SELECT coalesce(jsonb_object_agg(l.lane, l.entry), '{}') INTO after
          FROM (SELECT b.key AS lane, b.value AS entry FROM jsonb_each(before) AS b
                 WHERE NOT weights ? (b.value ->> 'name')
                 UNION ALL
                SELECT jobherd.lane_of(w.key), jsonb_build_object('name', w.key, 'weight', w.value::integer)
                  FROM jsonb_each_text(weights) AS w WHERE w.value <> '1') AS l;
        IF (SELECT count(*) FROM jsonb_object_keys(after)) > 1000 THEN
            RAISE EXCEPTION 'jobherd.fair: more than 1000 partitions of % have a weight', gate.name
                USING ERRCODE = 'invalid_parameter_value', HINT = 'A weight of 1 removes a partition from them.';
        END IF;
        INSERT INTO jobherd.gates AS g (scope, name, turns, divided_by) VALUES ('queue', gate.name, after, who)
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE SET turns = excluded.turns, divided_by = excluded.divided_by;
    END IF;
    IF NOT off OR before IS NOT NULL THEN
        PERFORM jobherd.note_unless_noted(actor, 'fair', jobherd.gate_as_target('queue', gate.name)
            || jsonb_build_object('weights', CASE WHEN NOT off THEN jobherd.show_weights(after) END,
                                  'before', jobherd.show_weights(before)), NULL);
    END IF;
    RETURN jobherd.show_weights(before);
END $$;
COMMENT ON FUNCTION jobherd.fair(text, jsonb, boolean, text) IS
    'Lets the partitions of a queue take turns, each with one job, or as many as its weight; a weight of 1 is the default. '
    'off => true ends it. Returns the previous weights. SELECT jobherd.fair(''crm'', ''{"acme": 3}'');';

-- Returns the queue, as gate_of, without everything together.
CREATE FUNCTION jobherd.queue_of(what text, queue text, OUT name text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    gate record;
BEGIN
    IF queue IS NULL THEN
        RAISE EXCEPTION 'jobherd.%: give a queue', what USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO gate FROM jobherd.gate_of(what, queue, NULL);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.%: everything together has no partitions', what
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Name a queue.';
    END IF;
    name := gate.name;
END $$;

CREATE FUNCTION jobherd.limit_each(
    queue text, max_running integer, strict boolean DEFAULT false, actor text DEFAULT NULL
)
RETURNS integer
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    who    CONSTANT text := coalesce(actor, session_user);
    most   CONSTANT integer := max_running;
    ranked CONSTANT boolean := coalesce(strict, false);
    gate   record;
    before integer;
    was    boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.queue_of('limit_each', queue);
    IF most < 1 THEN
        RAISE EXCEPTION 'jobherd.limit_each: max_running % is not a number from 1', most
            USING ERRCODE = 'invalid_parameter_value', HINT = 'To let nothing run, pause the queue.';
    ELSIF ranked AND most <> 1 THEN
        RAISE EXCEPTION 'jobherd.limit_each: strict order requires max_running 1, not %', most
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Jobs that run at a time have no order.';
    END IF;
    SELECT g.each_running, g.in_order INTO before, was FROM jobherd.gates g
     WHERE g.scope = 'queue' AND g.name = gate.name FOR UPDATE;
    IF most IS NULL THEN
        UPDATE jobherd.gates g
           SET each_running = NULL, in_order = NULL, divided_by = CASE WHEN g.turns IS NOT NULL THEN g.divided_by END
         WHERE g.scope = 'queue' AND g.name = gate.name AND g.each_running IS NOT NULL
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = 'queue' AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns) = 0;
    ELSE
        -- A new limit counts batches until a maintenance process has seen it (count_lane).
        INSERT INTO jobherd.gates AS g (scope, name, each_running, in_order, divided_by)
        VALUES ('queue', gate.name, most, ranked, who)
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET each_running = excluded.each_running, in_order = excluded.in_order, divided_by = excluded.divided_by,
               seen_at = CASE WHEN g.each_running IS NOT NULL THEN g.seen_at END;
    END IF;
    IF (most, CASE WHEN most IS NOT NULL THEN ranked END) IS DISTINCT FROM (before, was) THEN
        PERFORM jobherd.note_unless_noted(actor, 'limit', jobherd.gate_as_target('queue', gate.name)
            || jsonb_build_object('each', most, 'strict', ranked, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
COMMENT ON FUNCTION jobherd.limit_each(text, integer, boolean, text) IS
    'Sets how many jobs of each partition of a queue may run at a time on all hosts; null removes the limit. strict: one '
    'job at a time, in their order, and none while an earlier one waits for a retry. Returns the previous limit. '
    'SELECT jobherd.limit_each(''crm'', 2);';

CREATE OR REPLACE VIEW jobherd.limits AS
SELECT g.scope, g.name, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running,
       g.limited_at, g.limited_by, jobherd.show_rate(g) AS rate, g.burst, t.tokens, t.opens_in, g.rated_by,
       jobherd.show_weights(g.turns) AS weights, g.each_running, g.in_order, g.divided_by
  FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL
 WHERE num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0;

-- What removes one rule of a queue or kind leaves the others.

-- Returns how many jobs may start now under the limits of a queue or kind, 0 if it is paused. Null: any number.
-- Under a rate, a claim gets no more than what comes in 50 ms, but at least one: the jobs of a claim start one
-- after the other, and those of a large claim would start later than their tokens were taken.
CREATE FUNCTION jobherd.room_of(gate jobherd.gates)
RETURNS integer
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN CASE WHEN gate.paused_at IS NOT NULL THEN 0 WHEN num_nonnulls(gate.max_running, gate.rate) > 0 THEN greatest(least(
        gate.max_running - CASE WHEN gate.max_running IS NOT NULL
                                THEN jobherd.count_running(gate.scope, gate.name, gate.limited_at) END,
        CASE WHEN gate.rate IS NOT NULL
             THEN least((jobherd.tokens_of(gate)).tokens, greatest(1, floor(gate.rate * 0.05 / gate.per))) END), 0) END;
END $$;

CREATE OR REPLACE FUNCTION jobherd.resume(
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

CREATE OR REPLACE FUNCTION jobherd.set_limit(
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

CREATE OR REPLACE FUNCTION jobherd.limit(
    queue text DEFAULT NULL, rate text DEFAULT NULL, burst integer DEFAULT NULL, kind text DEFAULT NULL,
    actor text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    wanted CONSTANT text := rate;
    most   CONSTANT integer := burst;
    who    CONSTANT text := actor;
    gate   record;
    given  record;
    before text;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('limit', queue, kind);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.limit: everything together has no limit'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Limit a queue or a kind.';
    END IF;
    SELECT jobherd.show_rate(g) INTO before FROM jobherd.gates g
     WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    IF wanted IS NULL THEN
        UPDATE jobherd.gates g SET rate = NULL, per = NULL, burst = NULL, rated_by = NULL
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.rate IS NOT NULL
           AND num_nonnulls(g.paused_at, g.max_running, g.turns, g.each_running) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = gate.scope AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.max_running, g.turns, g.each_running) = 0;
    ELSE
        SELECT * INTO given FROM jobherd.parse_rate(wanted);
        IF most < 1 OR most > 1000000 OR most * given.seconds / given.count > 31622400 THEN
            RAISE EXCEPTION 'jobherd.limit: burst % is not a number from 1 that % reaches within a year', most, wanted
                USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'It says how many jobs may start at once after a time without any.';
        END IF;
        INSERT INTO jobherd.gates AS g (scope, name, rate, per, burst, rated_by)
        VALUES (gate.scope, gate.name, given.count, given.seconds,
                coalesce(most, jobherd.default_burst(given.count, given.seconds)), coalesce(who, session_user))
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET rate = excluded.rate, per = excluded.per, burst = excluded.burst, rated_by = excluded.rated_by;
    END IF;
    IF wanted IS NOT NULL OR before IS NOT NULL THEN
        PERFORM jobherd.note_unless_noted(who, 'limit', jobherd.gate_as_target(gate.scope, gate.name)
            || jsonb_build_object('rate', wanted, 'burst', most, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
