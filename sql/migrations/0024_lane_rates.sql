-- A rate limit of each partition: how many jobs of each partition of a queue may start in a time, over all hosts.
--
-- The rule is in the row of `gates`, like the other rules of a queue. Each lane has a bucket of its own, once a job of
-- it has started. A claim checks and takes the token of a lane under the lock of the lane, as it counts running jobs.
-- A lane without a token is passed. If jobs wait in it, its bucket says when the next token comes: supervisors wake a
-- worker at that time, and its claim finds the lane by that time, without a walk through all lanes.

ALTER TABLE jobherd.gates
    ADD COLUMN each_rate  integer,                      -- jobs of each partition that may start
    ADD COLUMN each_per   double precision,             -- in so many seconds
    ADD COLUMN each_burst integer,                      -- and so many at once after a pause
    -- A partition with a rate is claimed job by job, as under a limit of running jobs. So there always is such a limit:
    -- 2147483647 if none was set (show_each).
    ADD CONSTRAINT gates_each_rate_is_whole CHECK (
        num_nulls(each_rate, each_per, each_burst) IN (0, 3) AND (each_rate IS NULL OR each_running IS NOT NULL)
        AND each_rate BETWEEN 1 AND 1000000 AND each_per > 0 AND each_burst BETWEEN 1 AND 1000000
        AND each_burst * each_per / each_rate <= 31622400);

ALTER TABLE jobherd.buckets                             -- scope lane: the queue, a space and the lane
    ADD COLUMN waiting_in text COLLATE "C",             -- the queue, if jobs of a lane wait for a token
    ADD COLUMN opens_at   timestamptz;                  -- when that token comes
CREATE INDEX buckets_by_opening ON jobherd.buckets (waiting_in, opens_at) WHERE waiting_in IS NOT NULL;

-- Returns the limit of running jobs of each partition. Null: none was set.
CREATE FUNCTION jobherd.show_each(gate jobherd.gates)
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    SELECT nullif((gate).each_running, 2147483647)
$$;

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

CREATE OR REPLACE FUNCTION jobherd.limit_each(
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
                    HINT = 'It says how many jobs of a partition may start at once after a time without any.';
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

CREATE OR REPLACE VIEW jobherd.limits AS
SELECT g.scope, g.name, g.max_running,
       CASE WHEN g.max_running IS NOT NULL THEN jobherd.count_running(g.scope, g.name, g.limited_at) END AS running,
       g.limited_at, g.limited_by, jobherd.show_rate(g) AS rate, g.burst, t.tokens, t.opens_in, g.rated_by,
       jobherd.show_weights(g.turns) AS weights, jobherd.show_each(g) AS each_running, g.in_order, g.divided_by,
       jobherd.show_rate(jobherd.pace_of(g, '')) AS each_rate, g.each_burst
  FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL
 WHERE num_nonnulls(g.max_running, g.rate, g.turns, g.each_running) > 0;

-- Stores in the bucket of a lane when its next token comes, for jobs that wait for it, and empties a bucket of which
-- more is used than there can be (correct_buckets). Run under the lock of the lane.
CREATE FUNCTION jobherd.note_opening(rule jobherd.gates, lane text)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    pace CONSTANT jobherd.gates := jobherd.pace_of(rule, lane);
    step CONSTANT interval := jobherd.token_step(pace) * interval '1 microsecond';
BEGIN
    UPDATE jobherd.buckets b
       SET used_until = u.until, waiting_in = rule.name, opens_at = u.until - (pace.burst - 1) * step
      FROM (SELECT least(o.used_until, clock_timestamp() + pace.burst * step) AS until
              FROM jobherd.buckets o WHERE o.scope = pace.scope AND o.name = pace.name) AS u
     WHERE b.scope = pace.scope AND b.name = pace.name;
END $$;

CREATE FUNCTION jobherd.forget_opening(rule jobherd.gates, lane text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.buckets b SET waiting_in = NULL, opens_at = NULL
     WHERE b.scope = 'lane' AND b.name = rule.name || ' ' || lane AND b.waiting_in IS NOT NULL;
END $$;

-- Takes a token for a job of a lane that the claim starts. Run under the lock of the lane.
CREATE FUNCTION jobherd.take_lane_token(rule jobherd.gates, lane text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM jobherd.take_tokens(jobherd.pace_of(rule, lane), 1);
    IF (jobherd.tokens_of(jobherd.pace_of(rule, lane))).tokens < 1
       AND EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = rule.name AND r.lane = take_lane_token.lane) THEN
        PERFORM jobherd.note_opening(rule, lane);
    ELSE
        PERFORM jobherd.forget_opening(rule, lane);
    END IF;
END $$;

-- Returns whether the jobs of a lane wait for a token, and the time of that token is stored. Cost: by the primary key
-- alone. Without statistics, PostgreSQL might read all lanes of the queue by the other index, for each lane of a walk.
CREATE FUNCTION jobherd.lane_is_shut(rule jobherd.gates, lane text)
RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    step   CONSTANT interval := jobherd.token_step(jobherd.pace_of(rule, lane)) * interval '1 microsecond';
    at     CONSTANT timestamptz := clock_timestamp();
    bucket record;
BEGIN
    SELECT b.used_until, b.waiting_in, b.opens_at INTO bucket
      FROM jobherd.buckets b WHERE b.scope = 'lane' AND b.name = rule.name || ' ' || lane;
    RETURN FOUND AND bucket.waiting_in IS NOT NULL AND bucket.opens_at > at
           AND bucket.opens_at = bucket.used_until - (rule.each_burst - 1) * step
           AND bucket.used_until <= at + rule.each_burst * step;
END $$;

-- Returns lanes for whose waiting jobs a token has come, the longest-waiting first.
CREATE FUNCTION jobherd.opened_lanes(line text)
RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    at CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN ARRAY(SELECT split_part(b.name, ' ', 2) FROM jobherd.buckets b
                  WHERE b.waiting_in = line AND b.opens_at <= at ORDER BY b.opens_at LIMIT 20);
END $$;

-- Returns the seconds until a rate limit has a token for a job that waits in a served queue. Null: no job waits
-- for a token. Race: a token may come after this transaction has found none. So what opens is compared with its
-- beginning; otherwise no timer would be set, and the job would wait for the poll (tests/models/pace.pml).
CREATE FUNCTION jobherd.next_opening(served text[])
RETURNS double precision
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    since CONSTANT timestamptz := now();
    at    CONSTANT timestamptz := clock_timestamp();
    opens CONSTANT timestamptz := least(
        (SELECT min(o.opens_at)
           FROM jobherd.gates g JOIN jobherd.buckets b ON b.scope = g.scope AND b.name = g.name
                CROSS JOIN LATERAL (SELECT jobherd.token_step(g) * interval '1 microsecond' AS step) AS t
                CROSS JOIN LATERAL (SELECT least(b.used_until, at + g.burst * t.step) - (g.burst - 1) * t.step AS opens_at) AS o
          WHERE g.rate IS NOT NULL AND g.paused_at IS NULL AND o.opens_at > since
            AND CASE g.scope
                WHEN 'queue' THEN jobherd.rank_queue(g.name, served) IS NOT NULL
                                  AND EXISTS (SELECT FROM jobherd.waiting r WHERE r.queue = g.name)
                ELSE EXISTS (SELECT FROM jobherd.parked p
                              WHERE p.kind = g.name AND jobherd.rank_queue(p.queue, served) IS NOT NULL) END),
        (SELECT min(o.opens_at)
           FROM jobherd.gates g CROSS JOIN LATERAL (
                SELECT b.opens_at FROM jobherd.buckets b
                 WHERE b.waiting_in = g.name AND b.opens_at > since ORDER BY b.opens_at LIMIT 1) AS o
          WHERE g.each_rate IS NOT NULL AND g.paused_at IS NULL AND jobherd.rank_queue(g.name, served) IS NOT NULL));
BEGIN
    RETURN CASE WHEN opens IS NOT NULL THEN greatest(extract(epoch FROM opens - at), 0) END;
END $$;

-- Returns how many more jobs of a lane may start, 0 if none waits.
CREATE FUNCTION jobherd.room_in_lane(rule jobherd.gates, lane text)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = rule.name AND r.lane = room_in_lane.lane)
                THEN least(rule.each_running - jobherd.count_lane(rule, lane),
                           CASE WHEN rule.each_rate IS NOT NULL
                                THEN (jobherd.tokens_of(jobherd.pace_of(rule, lane))).tokens END)
                ELSE 0 END;
END $$;

-- Returns and locks the next job of a lane, if the lane may start one more. soon: another session has locked the lane
-- or its jobs, so the claim should be repeated soon.
--
-- Everything that decides about running jobs is read by one statement, in one snapshot: a job may move from `running`
-- to `scheduled` or `ready` at any moment. Under strict order only the very first job of a lane is locked.
CREATE FUNCTION jobherd.pick_from_lane(
    rule jobherd.gates, place text, among bigint[], OUT job jobherd.ready, OUT soon boolean
)
RETURNS record
LANGUAGE plpgsql
AS $$
DECLARE
    line CONSTANT text := rule.name;
BEGIN
    soon := false;
    IF place = '~' THEN
        SELECT * INTO job FROM jobherd.pick_unlaned(line, 1, among);
        RETURN;
    ELSIF (rule.each_rate IS NOT NULL AND jobherd.lane_is_shut(rule, place))
          OR (rule.in_order AND jobherd.lane_waits(line, place)) THEN
        RETURN;
    ELSIF NOT jobherd.lock_lane(place) THEN
        soon := true;
        RETURN;
    ELSIF rule.each_rate IS NOT NULL AND (jobherd.tokens_of(jobherd.pace_of(rule, place))).tokens < 1 THEN
        PERFORM jobherd.note_opening(rule, place);
        RETURN;
    ELSIF rule.in_order THEN
        SELECT r.* INTO job FROM jobherd.ready r
         WHERE r.id = (SELECT h.id FROM jobherd.ready h WHERE h.queue = line AND h.lane = place
                        ORDER BY h.priority, h.id LIMIT 1)
           AND (among IS NULL OR r.id = ANY (among))
           AND (SELECT jobherd.count_lane(rule, place)) < 1 AND NOT (SELECT jobherd.lane_waits(line, place))
           FOR UPDATE SKIP LOCKED;
        soon := job.id IS NULL AND among IS NULL AND jobherd.count_lane(rule, place) < 1
                AND NOT jobherd.lane_waits(line, place);
    ELSE
        SELECT r.* INTO job FROM jobherd.ready r
         WHERE r.queue = line AND r.lane = place AND (among IS NULL OR r.id = ANY (among))
           AND (SELECT jobherd.count_lane(rule, place)) < rule.each_running
         ORDER BY r.priority, r.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        soon := job.id IS NULL AND among IS NULL AND jobherd.count_lane(rule, place) < rule.each_running;
    END IF;
    IF job.id IS NULL AND rule.each_rate IS NOT NULL THEN
        PERFORM jobherd.forget_opening(rule, place);  -- what its jobs wait for is not a token
    END IF;
END $$;

-- Returns and locks the next job of a lane that may start one more. Lanes that are at their limit or wait are found
-- without a lock. A lane whose lock another claim holds is left out. That claim notifies idle workers if the lane
-- has room. But a job of the lane may end after it has counted, so a claim that finds nothing then searches again
-- soon. A claim looks at 500 lanes, and the next one goes on from there, until one round has found nothing. If lanes
-- that waited for a token have one now, it looks at 20 lanes and then at those.
CREATE FUNCTION jobherd.pick_below(rule jobherd.gates, among bigint[])
RETURNS SETOF jobherd.ready
LANGUAGE plpgsql
AS $$
DECLARE
    line   CONSTANT text := rule.name;
    spot   CONSTANT text[] := string_to_array(nullif(current_setting(jobherd.turn_setting(line), true), ''), ' ');
    begun  CONSTANT text := coalesce(spot[1], lpad(to_hex((random() * 4294967295)::bigint), 8, '0'));
    full_lanes CONSTANT text[] := ARRAY(
        SELECT r.lane FROM jobherd.running r WHERE r.queue = line AND r.lane IS NOT NULL
         GROUP BY 1 HAVING count(*) >= rule.each_running);
    listed CONSTANT text[] := CASE WHEN among IS NOT NULL THEN ARRAY(
        SELECT coalesce(r.lane, '~') FROM jobherd.ready r WHERE r.id = ANY (among) AND r.queue = line
         GROUP BY 1 ORDER BY min(r.priority), min(r.id)) END;
    opened CONSTANT text[] := CASE WHEN rule.each_rate IS NOT NULL AND among IS NULL THEN jobherd.opened_lanes(line)
                                   ELSE '{}' END;
    since  CONSTANT text := coalesce(spot[3], begun);  -- where the round began
    place  text := begun;
    around boolean := coalesce(spot[4]::boolean, false);
    soon   boolean := false;                        -- a lane is locked, or has room and other sessions have locked its jobs
    found  record;
BEGIN
    FOR step IN 1..CASE WHEN opened = '{}' THEN 500 ELSE 20 END LOOP
        IF among IS NOT NULL THEN
            place := listed[step];
        ELSIF step > 1 OR coalesce(spot[2]::integer, 0) < 1 THEN
            SELECT * INTO place, around FROM jobherd.next_turn(line, since, place, around);
        END IF;
        EXIT WHEN place IS NULL;
        CONTINUE WHEN place = ANY (full_lanes);
        SELECT p.job, p.soon INTO found FROM jobherd.pick_from_lane(rule, place, among) AS p;
        soon := soon OR found.soon;
        IF (found.job).id IS NOT NULL THEN
            RETURN NEXT found.job;
            RETURN;
        END IF;
    END LOOP;
    IF place IS NOT NULL AND among IS NULL THEN
        PERFORM set_config(jobherd.turn_setting(line), concat_ws(' ', place, 0, since, around), false);
        soon := true;
    ELSIF spot[3] IS NOT NULL THEN
        PERFORM set_config(jobherd.turn_setting(line), begun || ' 0', false);
    END IF;
    FOREACH place IN ARRAY opened LOOP
        SELECT p.job, p.soon INTO found FROM jobherd.pick_from_lane(rule, place, NULL) AS p;
        IF (found.job).id IS NOT NULL THEN
            RETURN NEXT found.job;
            RETURN;
        END IF;
    END LOOP;
    IF soon THEN
        RETURN NEXT NULL::jobherd.ready;
    END IF;
END $$;

-- Returns the jobs whose turn is next, locked, as many as a claim may take, or one under a limit of each
-- partition. A row of nulls says: search again soon.
--
-- A turn is one job, or as many as the weight of its partition. Jobs without a partition take a turn together if
-- they are among the first 50 of the queue: at worst they wait for all jobs before them. If there are fewer turns
-- than jobs to claim, each lane gives as many more. A restricted claim (among) takes its jobs in plain order. A claim
-- that goes on with the turn of its first lane ends the round before it comes there again: otherwise it would pick the
-- same jobs twice.
CREATE FUNCTION jobherd.pick_in_turn(rule jobherd.gates, wanted integer, kinds text[], shares real[], among bigint[])
RETURNS SETOF jobherd.ready
LANGUAGE plpgsql
AS $$
DECLARE
    line   CONSTANT text := rule.name;
    spot   CONSTANT text[] := string_to_array(nullif(current_setting(jobherd.turn_setting(line), true), ''), ' ');
    begun  CONSTANT text := coalesce(spot[1], lpad(to_hex((random() * 4294967295)::bigint), 8, '0'));
    place  text := begun;
    around boolean := false;
    quota  integer := spot[2];                      -- jobs that are left of the last turn
    resumed CONSTANT boolean := coalesce(quota, 0) > 0;
    last   jobherd.ready;
    ends   jobherd.ready[] := '{}';                 -- the last job of each lane that was picked
    round  jobherd.ready[];
    rest   integer;
    picked integer := 0;
    weight real := 0;
    share  real;
    job    jobherd.ready;
BEGIN
    IF rule.each_running IS NOT NULL THEN
        RETURN QUERY SELECT * FROM jobherd.pick_below(rule, among);
        RETURN;
    ELSIF among IS NOT NULL THEN
        RETURN QUERY SELECT r.* FROM jobherd.ready r WHERE r.id = ANY (among) AND r.queue = line
                      ORDER BY r.priority, r.id LIMIT wanted FOR UPDATE SKIP LOCKED;
        RETURN;
    END IF;
    LOOP
        IF quota IS NULL OR quota < 1 THEN
            SELECT * INTO place, around FROM jobherd.next_turn(line, begun, place, around);
            EXIT WHEN place IS NULL OR (resumed AND around AND place = begun);
            quota := CASE WHEN place = '~' AND NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = line AND r.lane > '')
                          THEN wanted ELSE jobherd.weight_of(rule, place) END;
        END IF;
        last := NULL;
        FOR job IN SELECT * FROM jobherd.pick_from(line, place, quota) LOOP
            share := jobherd.share_of(job, kinds, shares);
            IF picked > 0 AND (weight >= 1 OR share >= 1 OR picked >= wanted) THEN
                RETURN;
            END IF;
            weight := weight + share;
            picked := picked + 1;
            last := job;
            RETURN NEXT job;
        END LOOP;
        IF last.lane IS NOT NULL THEN
            ends := ends || last;
        END IF;
        quota := 0;
        IF picked >= wanted THEN
            RETURN;
        END IF;
    END LOOP;
    WHILE cardinality(ends) > 0 LOOP
        quota := ceil((wanted - picked)::real / cardinality(ends));
        round := ends;
        ends := '{}';
        FOREACH last IN ARRAY round LOOP
            rest := quota * jobherd.weight_of(rule, last.lane);
            FOR job IN SELECT r.* FROM jobherd.ready r
                        WHERE r.queue = line AND r.lane = last.lane AND (r.priority, r.id) > (last.priority, last.id)
                        ORDER BY r.priority, r.id LIMIT rest FOR UPDATE SKIP LOCKED
            LOOP
                share := jobherd.share_of(job, kinds, shares);
                IF weight >= 1 OR share >= 1 OR picked >= wanted THEN
                    RETURN;
                END IF;
                weight := weight + share;
                picked := picked + 1;
                rest := rest - 1;
                IF rest = 0 THEN
                    ends := ends || job;
                END IF;
                RETURN NEXT job;
            END LOOP;
        END LOOP;
        IF picked >= wanted THEN
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Trigger, after a job for which a partition in strict order waited is gone, canceled or deleted: the next one may start.
-- A maintenance process that makes such a job ready notifies anyway.
CREATE FUNCTION jobherd.wake_lane()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = OLD.queue AND g.in_order)
       AND NOT EXISTS (SELECT FROM jobherd.children c WHERE c.backend_pid = pg_backend_pid()) THEN
        PERFORM jobherd.tell_sleepers(OLD.queue);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER wake_lane AFTER DELETE ON jobherd.scheduled FOR EACH ROW
    WHEN (OLD.lane IS NOT NULL AND (OLD.attempts > 0 OR OLD.last_error IS NOT NULL)) EXECUTE FUNCTION jobherd.wake_lane();
CREATE TRIGGER wake_lane AFTER DELETE ON jobherd.parked FOR EACH ROW
    WHEN (OLD.lane IS NOT NULL) EXECUTE FUNCTION jobherd.wake_lane();
