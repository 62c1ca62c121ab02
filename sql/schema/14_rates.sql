-- Rate limits of queues and kinds: how many jobs may start in a time, over all hosts.
--
-- A start takes a token. The tokens are kept as one timestamp per limit (the generic cell rate algorithm), and change
-- in the transaction of the claim: a token cannot leak, and a claim that is rolled back has taken none. There are no
-- fixed windows, in which twice the limit could start around the end of a window. tests/models/rate.pml checks the protocol.

CREATE TABLE jobherd.buckets (
    scope      text COLLATE "C" NOT NULL,               -- queue, kind or lane
    name       text COLLATE "C" NOT NULL,               -- of a lane: the queue, a space and the lane
    used_until timestamptz NOT NULL,                    -- each token moves it by per / rate; in the past: full
    waiting_in text COLLATE "C",                        -- the queue, if jobs of a lane wait for a token
    opens_at   timestamptz,                             -- when that token comes
    PRIMARY KEY (scope, name)
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.buckets IS 'The used tokens of rate limits.';
CREATE INDEX buckets_by_opening ON jobherd.buckets (waiting_in, opens_at) WHERE waiting_in IS NOT NULL;

-- Returns the microseconds between two tokens. Rounded up: otherwise 3/s would be exceeded after some hours.
CREATE FUNCTION jobherd.token_step(gate jobherd.gates)
RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT ceil((gate).per * 1000000 / (gate).rate)::bigint
$$;

-- Returns how many tokens a rate limit has now, the seconds until the next one comes if it has none, and whether
-- more is stored as used than there can be. Exact only under the lock of the limit (lock_limit).
CREATE FUNCTION jobherd.tokens_of(
    gate jobherd.gates, OUT tokens integer, OUT opens_in double precision, OUT overfull boolean
)
RETURNS record
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    step CONSTANT bigint := jobherd.token_step(gate);
    most CONSTANT bigint := gate.burst * step;
    used bigint := greatest(0, 1000000 * extract(epoch FROM (
        SELECT b.used_until FROM jobherd.buckets b WHERE b.scope = gate.scope AND b.name = gate.name)
        - clock_timestamp()));
BEGIN
    overfull := used > most;
    used := least(used, most);
    tokens := gate.burst - (used + step - 1) / step;
    opens_in := greatest(used - most + step, 0) / 1e6;
END $$;

-- Takes tokens for jobs that the claim starts. Run under the lock of the limit.
CREATE FUNCTION jobherd.take_tokens(gate jobherd.gates, wanted integer)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    step CONSTANT interval := jobherd.token_step(gate) * interval '1 microsecond';
    at   CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO jobherd.buckets AS b (scope, name, used_until) VALUES (gate.scope, gate.name, at + wanted * step)
    ON CONFLICT ON CONSTRAINT buckets_pkey DO UPDATE
       SET used_until = least(greatest(b.used_until, at), at + gate.burst * step) + wanted * step;
END $$;

-- Empties buckets of which more is used than there can be: the clock was set back, or the limit became higher. They
-- would stay empty until the time that is stored. A locked one is left for the next claim.
CREATE FUNCTION jobherd.correct_buckets()
RETURNS void
LANGUAGE sql
AS $$
    WITH wrong AS MATERIALIZED (
        SELECT b.scope, b.name, clock_timestamp() + g.burst * jobherd.token_step(g) * interval '1 microsecond' AS until
          FROM jobherd.buckets b JOIN jobherd.gates g ON g.scope = b.scope AND g.name = b.name AND g.rate IS NOT NULL
         WHERE (jobherd.tokens_of(g)).overfull
           FOR UPDATE OF b SKIP LOCKED
    )
    UPDATE jobherd.buckets b SET used_until = w.until FROM wrong w WHERE b.scope = w.scope AND b.name = w.name
$$;

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

-- Returns the count and the seconds of a rate such as 100/min, 10/s or 5/2h.
CREATE FUNCTION jobherd.parse_rate(rate text, OUT count integer, OUT seconds double precision)
RETURNS record
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    parts CONSTANT text[] := regexp_match(rate, '^([1-9][0-9]{0,6})/([1-9][0-9]{0,4})?(s|m|min|h|d)$');
BEGIN
    count := parts[1];
    seconds := coalesce(parts[2], '1')::double precision
               * CASE parts[3] WHEN 's' THEN 1 WHEN 'h' THEN 3600 WHEN 'd' THEN 86400 ELSE 60 END;
    IF parts IS NULL OR count > 1000000 OR seconds / count > 31622400 THEN
        RAISE EXCEPTION 'jobherd.limit: rate % is not a number of jobs and a time, such as 100/min',
            quote_literal(left(rate, 120))
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Units are s, min, h and d; 5/2h is five in two hours. At most 1,000,000 jobs.';
    END IF;
END $$;

-- Returns the burst of a rate for which none is given: what comes in 50 ms, and at least one. Workers look for
-- the next token by timers, so tokens that come more often would be lost.
CREATE FUNCTION jobherd.default_burst(count integer, seconds double precision)
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(1, ceil(count * 0.05 / seconds))::integer
$$;

-- Returns a rate as people write it.
CREATE FUNCTION jobherd.show_rate(gate jobherd.gates)
RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT (gate).rate || '/' || CASE WHEN (gate).per = u.seconds THEN '' ELSE ((gate).per / u.seconds)::text END || u.unit
      FROM (VALUES ('d', 86400), ('h', 3600), ('min', 60), ('s', 1)) AS u (unit, seconds)
     WHERE (gate).per::numeric % u.seconds = 0 OR u.seconds = 1
     ORDER BY u.seconds DESC LIMIT 1
$$;

CREATE FUNCTION jobherd.limit(
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
                    HINT = 'The burst is the number of jobs that may start at once after a time without any.';
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
COMMENT ON FUNCTION jobherd.limit(text, text, integer, text, text) IS
    'Sets how many jobs of a queue or a kind may start in a time on all hosts, and how many at once after a '
    'time without starts (burst; default: what comes in 50 ms, at least 1); null removes the limit. Each attempt '
    'counts. Returns the previous rate. SELECT jobherd.limit(''mail'', ''100/min'', burst => 10); SELECT '
    'jobherd.limit(kind => ''crm:push'', rate => ''10/s'');';

-- Trigger, before a gate is deleted: what removes a pause or a concurrency limit with its row leaves the rate limit of the
-- same queue or kind.
CREATE FUNCTION jobherd.keep_rate()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.gates g
       SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL, max_running = NULL, limited_at = NULL,
           limited_by = NULL
     WHERE g.scope = OLD.scope AND g.name = OLD.name;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_rate BEFORE DELETE ON jobherd.gates FOR EACH ROW
    WHEN (OLD.rate IS NOT NULL AND (OLD.max_running IS NOT NULL OR OLD.paused_at IS NOT NULL))
    EXECUTE FUNCTION jobherd.keep_rate();
