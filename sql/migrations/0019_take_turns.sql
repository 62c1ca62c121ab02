-- Which jobs of a queue are next, if its partitions take turns or have a limit.
--
-- A session walks from lane to lane by the index ready_by_lane, and begins after the lane where its last claim
-- ended. It keeps that position in a setting of the session. So workers share no position and no counter, and
-- nothing is written for turns. Lanes are hashes: a session without a position begins at a random one.
--
-- The rows of `running` are the used places of a partition, as for concurrency limits. A claim counts them under
-- a lock of the lane that it only tries to get, by a statement that begins after it has the lock
-- (tests/models/lane.pml).

-- Returns how many jobs of a lane run. Batches are counted until no claim can be under way that did not see the
-- limit, as in count_running.
CREATE FUNCTION jobherd.count_lane(rule jobherd.gates, lane text)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT count(*) FROM jobherd.running r
             WHERE r.queue = rule.name AND r.lane = count_lane.lane)
         + (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE r.lane IS NULL AND r.queue = rule.name AND j.lane = count_lane.lane
               AND (r.claimed_at < coalesce(rule.seen_at + interval '10 s', 'infinity') OR r.limited_kind IS NOT NULL));
END $$;

-- Returns how many more jobs of a lane may start, 0 if none waits.
CREATE FUNCTION jobherd.room_in_lane(rule jobherd.gates, lane text)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = rule.name AND r.lane = room_in_lane.lane)
                THEN rule.each_running - jobherd.count_lane(rule, lane) ELSE 0 END;
END $$;

CREATE FUNCTION jobherd.weight_of(rule jobherd.gates, lane text)
RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(((rule).turns -> lane ->> 'weight')::integer, 1)
$$;

-- Returns the name of the setting that holds the position of this session in a queue: the lane of the last turn,
-- and how many more jobs that turn has. In a round that has found nothing so far also the lane where it began, and
-- whether it has passed the last lane.
CREATE FUNCTION jobherd.turn_setting(queue text)
RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT 'jobherd_turn.q' || encode(convert_to(queue, 'UTF8'), 'hex')
$$;

-- Keeps the position after a claim.
CREATE FUNCTION jobherd.note_turn(rule jobherd.gates, batch jobherd.ready[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    place  CONSTANT text := jobherd.turn_setting(rule.name);
    was    CONSTANT text[] := string_to_array(current_setting(place, true), ' ');
    last   CONSTANT jobherd.ready := batch[cardinality(batch)];
    taken  integer := 0;
    rest   integer;
BEGIN
    FOR n IN REVERSE cardinality(batch)..1 LOOP
        EXIT WHEN (batch[n]).lane IS DISTINCT FROM last.lane;
        taken := taken + 1;
    END LOOP;
    rest := CASE WHEN taken = cardinality(batch) AND was[1] = last.lane AND was[2]::integer > 0 THEN was[2]::integer
                 ELSE jobherd.weight_of(rule, last.lane) END;
    PERFORM set_config(place, coalesce(last.lane, '~') || ' ' || greatest(rest - taken, 0), false);
END $$;

-- Moves a walk over the turns of a queue to the next one: the next lane, or `~` after the last one, for the jobs
-- without a lane. It ends with null, once it has come round to where it began.
CREATE FUNCTION jobherd.next_turn(line text, begun text, INOUT place text, INOUT around boolean)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF place = '~' AND around THEN
        place := NULL;
        RETURN;
    ELSIF place = '~' THEN
        around := true;
        place := '';
    END IF;
    SELECT r.lane INTO place FROM jobherd.ready r WHERE r.queue = line AND r.lane > place
     ORDER BY r.lane, r.priority, r.id LIMIT 1;
    place := coalesce(place, '~');
    IF around AND place > begun COLLATE "C" THEN
        place := NULL;
    END IF;
END $$;

-- Returns and locks the first jobs without a lane, of the first 50 of a queue.
CREATE FUNCTION jobherd.pick_unlaned(line text, wanted integer, among bigint[])
RETURNS SETOF jobherd.ready
LANGUAGE sql
AS $$
    SELECT r.* FROM jobherd.ready r
     WHERE r.id = ANY (ARRAY(SELECT f.id
                               FROM (SELECT h.id, h.lane FROM jobherd.ready h WHERE h.queue = line
                                      ORDER BY h.priority, h.id LIMIT 50) AS f
                              WHERE f.lane IS NULL AND (among IS NULL OR f.id = ANY (among))))
     ORDER BY r.priority, r.id LIMIT wanted FOR UPDATE SKIP LOCKED
$$;

-- Returns and locks the first jobs of one turn.
CREATE FUNCTION jobherd.pick_from(line text, place text, wanted integer)
RETURNS SETOF jobherd.ready
LANGUAGE plpgsql
AS $$
BEGIN
    IF place = '~' THEN
        RETURN QUERY SELECT * FROM jobherd.pick_unlaned(line, wanted, NULL);
    ELSE
        RETURN QUERY SELECT r.* FROM jobherd.ready r WHERE r.queue = line AND r.lane = place
                      ORDER BY r.priority, r.id LIMIT wanted FOR UPDATE SKIP LOCKED;
    END IF;
END $$;

-- Returns the jobs whose turn is next, locked, as many as a claim may take, or one under a limit of each
-- partition. A row of nulls says: search again soon.
--
-- A turn is one job, or as many as the weight of its partition. Jobs without a partition take a turn together if
-- they are among the first 50 of the queue: at worst they wait for all jobs before them. If there are fewer turns
-- than jobs to claim, each lane gives as many more. A restricted claim (among) takes its jobs in plain order.
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
            EXIT WHEN place IS NULL;
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

-- Returns parked jobs of a kind that may start again to their lanes, one of each lane in the order of the turns.
-- Otherwise a flood that was parked would start before all other partitions. Rows that other sessions have locked
-- stay parked.
CREATE FUNCTION jobherd.return_parked(rule jobherd.gates, wanted_kind text, wanted integer, among bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    line  CONSTANT text := rule.name;
    begun CONSTANT text := coalesce(split_part(current_setting(jobherd.turn_setting(line), true), ' ', 1), '');
    first bigint[];
BEGIN
    IF among IS NOT NULL THEN
        first := among;
    ELSE
        WITH RECURSIVE later AS (
            (SELECT p.lane, p.id FROM jobherd.parked p
              WHERE p.kind = wanted_kind AND p.queue = line AND p.lane > begun ORDER BY p.lane, p.priority, p.id LIMIT 1)
            UNION ALL
            SELECT after.lane, after.id
              FROM later t CROSS JOIN LATERAL (
                   SELECT p.lane, p.id FROM jobherd.parked p
                    WHERE p.kind = wanted_kind AND p.queue = line AND p.lane > t.lane
                    ORDER BY p.lane, p.priority, p.id LIMIT 1
                   ) AS after
        ), earlier AS (
            (SELECT p.lane, p.id FROM jobherd.parked p
              WHERE p.kind = wanted_kind AND p.queue = line AND p.lane <= begun ORDER BY p.lane, p.priority, p.id LIMIT 1)
            UNION ALL
            SELECT after.lane, after.id
              FROM earlier t CROSS JOIN LATERAL (
                   SELECT p.lane, p.id FROM jobherd.parked p
                    WHERE p.kind = wanted_kind AND p.queue = line AND p.lane > t.lane AND p.lane <= begun
                    ORDER BY p.lane, p.priority, p.id LIMIT 1
                   ) AS after
        )
        SELECT array_agg(c.id) INTO first
          FROM ((SELECT l.id FROM later l LIMIT wanted)
                UNION ALL
                (SELECT e.id FROM earlier e LIMIT wanted)
                UNION ALL
                (SELECT p.id FROM jobherd.parked p WHERE p.kind = wanted_kind AND p.queue = line AND p.lane IS NULL
                  ORDER BY p.priority, p.id LIMIT wanted)
                LIMIT wanted) AS c;
    END IF;
    WITH back AS (
        DELETE FROM jobherd.parked p
         WHERE p.id = ANY (ARRAY(
               SELECT o.id FROM jobherd.parked o
                WHERE o.id = ANY (first) AND o.kind = wanted_kind AND o.queue = line
                  AND NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = o.id)
                ORDER BY o.priority, o.id LIMIT wanted FOR UPDATE SKIP LOCKED))
        RETURNING p.*
    )
    INSERT INTO jobherd.ready SELECT * FROM back;
END $$;

-- Returns whether the first job of a lane in strict order waits for an earlier one: for its retry, or because a
-- claim has set it aside.
CREATE FUNCTION jobherd.lane_waits(line text, place text)
RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobherd.scheduled s WHERE s.queue = line AND s.lane = place
                      AND (s.attempts > 0 OR s.last_error IS NOT NULL))
        OR EXISTS (SELECT FROM jobherd.parked p WHERE p.queue = line AND p.lane = place
                      AND (p.priority, p.id) < (SELECT h.priority, h.id FROM jobherd.ready h
                                                 WHERE h.queue = line AND h.lane = place
                                                 ORDER BY h.priority, h.id LIMIT 1));
END $$;

-- Locks of lanes, one for all lanes whose hashes begin with the same two digits. They are there from the start: a
-- claim that had to create one would wait for another that creates it. A lane that shares its lock with one that is
-- locked is passed like a locked one.
INSERT INTO jobherd.claim_locks (scope, name) SELECT 'lane', lpad(to_hex(n), 2, '0') FROM generate_series(0, 255) AS n;

-- Locks a lane until the end of the transaction, unless another claim holds its lock.
CREATE FUNCTION jobherd.lock_lane(lane text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM jobherd.claim_locks l WHERE l.scope = 'lane' AND l.name = left(lane, 2) FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- Returns and locks the next job of a lane that may start one more. Lanes that are at their limit or wait are found
-- without a lock. A lane whose lock another claim holds is left out. That claim notifies idle workers if the lane
-- has room. But a job of the lane may end after it has counted, so a claim that finds nothing then searches again
-- soon. A claim looks at 500 lanes, and the next one goes on from there, until one round has found nothing.
--
-- Everything that decides about a lane is read by one statement, in one snapshot: a job may move from `running` to
-- `scheduled` or `ready` at any moment. Under strict order only the very first job of a lane is locked.
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
    since  CONSTANT text := coalesce(spot[3], begun);  -- where the round began
    place  text := begun;
    around boolean := coalesce(spot[4]::boolean, false);
    soon   boolean := false;                        -- a lane is locked, or has room and other sessions have locked its jobs
    job    jobherd.ready;
BEGIN
    FOR step IN 1..500 LOOP
        IF among IS NOT NULL THEN
            place := listed[step];
        ELSIF step > 1 OR coalesce(spot[2]::integer, 0) < 1 THEN
            SELECT * INTO place, around FROM jobherd.next_turn(line, since, place, around);
        END IF;
        EXIT WHEN place IS NULL;
        IF place = '~' THEN
            SELECT * INTO job FROM jobherd.pick_unlaned(line, 1, among);
        ELSIF place = ANY (full_lanes) OR (rule.in_order AND jobherd.lane_waits(line, place)) THEN
            CONTINUE;
        ELSIF NOT jobherd.lock_lane(place) THEN
            soon := true;
            CONTINUE;
        ELSIF rule.in_order THEN
            SELECT r.* INTO job FROM jobherd.ready r
             WHERE r.id = (SELECT h.id FROM jobherd.ready h WHERE h.queue = line AND h.lane = place
                            ORDER BY h.priority, h.id LIMIT 1)
               AND (among IS NULL OR r.id = ANY (among))
               AND (SELECT jobherd.count_lane(rule, place)) < 1 AND NOT (SELECT jobherd.lane_waits(line, place))
               FOR UPDATE SKIP LOCKED;
            soon := soon OR (job.id IS NULL AND among IS NULL AND jobherd.count_lane(rule, place) < 1
                             AND NOT jobherd.lane_waits(line, place));
        ELSE
            SELECT r.* INTO job FROM jobherd.ready r
             WHERE r.queue = line AND r.lane = place AND (among IS NULL OR r.id = ANY (among))
               AND (SELECT jobherd.count_lane(rule, place)) < rule.each_running
             ORDER BY r.priority, r.id LIMIT 1 FOR UPDATE SKIP LOCKED;
            soon := soon OR (job.id IS NULL AND among IS NULL AND jobherd.count_lane(rule, place) < rule.each_running);
        END IF;
        IF job.id IS NOT NULL THEN
            RETURN NEXT job;
            RETURN;
        END IF;
    END LOOP;
    IF place IS NOT NULL AND among IS NULL THEN
        PERFORM set_config(jobherd.turn_setting(line), concat_ws(' ', place, 0, since, around), false);
        soon := true;
    ELSIF spot[3] IS NOT NULL THEN
        PERFORM set_config(jobherd.turn_setting(line), begun || ' 0', false);
    END IF;
    IF soon THEN
        RETURN NEXT NULL::jobherd.ready;
    END IF;
END $$;
