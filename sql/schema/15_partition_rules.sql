-- Rules for the partitions of a queue: fair turns, and limits of each partition. Also the view of all limits.
--
-- The rules are in the row of `gates`, so a claim finds them as it finds other limits. 17_lane_limits.sql says how the
-- limits work, 19_turns.sql how the turns do.

-- Returns the weights by the names of the partitions: they are stored by lane.
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

-- Returns the limit of running jobs of each partition. Null: none was set.
CREATE FUNCTION jobherd.show_each(gate jobherd.gates)
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    SELECT nullif((gate).each_running, 2147483647)
$$;

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
    IF most < 1 OR most = 2147483647 THEN
        RAISE EXCEPTION 'jobherd.limit_each: max_running % is not a number from 1 to 2147483646', most
            USING ERRCODE = 'invalid_parameter_value', HINT = 'To let nothing run, pause the queue.';
    ELSIF ranked AND most <> 1 THEN
        RAISE EXCEPTION 'jobherd.limit_each: strict order requires max_running 1, not %', most
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Jobs that run at a time have no order.';
    END IF;
    SELECT jobherd.show_each(g), g.in_order INTO before, was FROM jobherd.gates g
     WHERE g.scope = 'queue' AND g.name = gate.name FOR UPDATE;
    IF most IS NULL THEN
        UPDATE jobherd.gates g
           SET each_running = CASE WHEN g.each_rate IS NOT NULL THEN 2147483647 END,
               in_order = CASE WHEN g.each_rate IS NOT NULL THEN false END,
               divided_by = CASE WHEN num_nonnulls(g.turns, g.each_rate) > 0 THEN g.divided_by END
         WHERE g.scope = 'queue' AND g.name = gate.name AND g.each_running IS NOT NULL
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns, g.each_rate) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = 'queue' AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns, g.each_rate) = 0;
    ELSE
        -- A new limit counts batches until a maintenance process has seen it (count_lane).
        INSERT INTO jobherd.gates AS g (scope, name, each_running, in_order, divided_by)
        VALUES ('queue', gate.name, most, ranked, who)
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET each_running = excluded.each_running, in_order = excluded.in_order, divided_by = excluded.divided_by,
               seen_at = CASE WHEN g.each_running IS NOT NULL THEN g.seen_at END;
    END IF;
    IF (most, CASE WHEN most IS NOT NULL THEN ranked END) IS DISTINCT FROM
       (before, CASE WHEN before IS NOT NULL THEN was END) THEN
        PERFORM jobherd.note_unless_noted(actor, 'limit', jobherd.gate_as_target('queue', gate.name)
            || jsonb_build_object('each', most, 'strict', ranked, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
COMMENT ON FUNCTION jobherd.limit_each(text, integer, boolean, text) IS
    'Sets how many jobs of each partition of a queue may run at a time on all hosts; null removes the limit. strict: one '
    'job at a time, in their order, and none while an earlier one waits for a retry. Returns the previous limit. '
    'SELECT jobherd.limit_each(''crm'', 2);';

-- Returns the rate limit of one lane, for the functions of rate limits.
CREATE FUNCTION jobherd.pace_of(rule jobherd.gates, lane text)
RETURNS jobherd.gates
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    pace jobherd.gates;
BEGIN
    pace.scope := 'lane';
    pace.name := rule.name || ' ' || lane;
    pace.rate := rule.each_rate;
    pace.per := rule.each_per;
    pace.burst := rule.each_burst;
    RETURN pace;
END $$;

CREATE FUNCTION jobherd.limit_each_rate(
    queue text, rate text, burst integer DEFAULT NULL, actor text DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
    who    CONSTANT text := coalesce(actor, session_user);
    most   CONSTANT integer := burst;
    gate   record;
    given  record;
    before text;
BEGIN
    SELECT * INTO gate FROM jobherd.queue_of('limit_each_rate', queue);
    SELECT jobherd.show_rate(jobherd.pace_of(g, '')) INTO before FROM jobherd.gates g
     WHERE g.scope = 'queue' AND g.name = gate.name FOR UPDATE;
    IF rate IS NULL THEN
        UPDATE jobherd.gates g
           SET each_rate = NULL, each_per = NULL, each_burst = NULL, each_running = jobherd.show_each(g),
               in_order = CASE WHEN jobherd.show_each(g) IS NOT NULL THEN g.in_order END,
               divided_by = CASE WHEN num_nonnulls(g.turns, jobherd.show_each(g)) > 0 THEN g.divided_by END
         WHERE g.scope = 'queue' AND g.name = gate.name AND g.each_rate IS NOT NULL
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns, jobherd.show_each(g)) > 0;
        DELETE FROM jobherd.gates g
         WHERE g.scope = 'queue' AND g.name = gate.name
           AND num_nonnulls(g.paused_at, g.max_running, g.rate, g.turns, jobherd.show_each(g)) = 0;
    ELSE
        SELECT * INTO given FROM jobherd.parse_rate(rate);
        IF most < 1 OR most > 1000000 OR most * given.seconds / given.count > 31622400 THEN
            RAISE EXCEPTION 'jobherd.limit_each_rate: burst % is not a number from 1 that % reaches within a year', most, rate
                USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'The burst is the number of jobs of a partition that may start at once after a time without any.';
        END IF;
        INSERT INTO jobherd.gates AS g (scope, name, each_running, in_order, each_rate, each_per, each_burst, divided_by)
        VALUES ('queue', gate.name, 2147483647, false, given.count, given.seconds,
                coalesce(most, jobherd.default_burst(given.count, given.seconds)), who)
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET each_running = coalesce(g.each_running, excluded.each_running),
               in_order = coalesce(g.in_order, excluded.in_order), each_rate = excluded.each_rate,
               each_per = excluded.each_per, each_burst = excluded.each_burst, divided_by = excluded.divided_by,
               seen_at = CASE WHEN g.each_running IS NOT NULL THEN g.seen_at END;
    END IF;
    IF rate IS NOT NULL OR before IS NOT NULL THEN
        PERFORM jobherd.note_unless_noted(actor, 'limit', jobherd.gate_as_target('queue', gate.name)
            || jsonb_build_object('each_rate', rate, 'burst', most, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
COMMENT ON FUNCTION jobherd.limit_each_rate(text, text, integer, text) IS
    'Sets how many jobs of each partition of a queue may start in a time on all hosts, and how many at once after a time '
    'without starts (burst; default: what comes in 50 ms, at least 1); null removes the limit. Returns the previous rate. '
    'SELECT jobherd.limit_each_rate(''crm'', ''10/s'', burst => 5);';

CREATE VIEW jobherd.limits AS
SELECT g.scope, g.name, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running,
       g.limited_at, g.limited_by, jobherd.show_rate(g) AS rate, g.burst, t.tokens, t.opens_in, g.rated_by,
       jobherd.show_weights(g.turns) AS weights, jobherd.show_each(g) AS each_running, g.in_order, g.divided_by,
       jobherd.show_rate(jobherd.pace_of(g, '')) AS each_rate, g.each_burst
  FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL
 WHERE num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0;
COMMENT ON VIEW jobherd.limits IS 'The limits of queues and kinds, and how much of each is used.';
