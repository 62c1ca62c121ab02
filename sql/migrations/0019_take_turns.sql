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

