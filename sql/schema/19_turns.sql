-- Which jobs of a queue are next, if its partitions take turns.
--
-- A session walks from lane to lane by the index ready_by_lane, and begins after the lane where its last claim
-- ended. It keeps that position in a setting of the session. So workers share no position and no counter, and
-- nothing is written for turns. Lanes are hashes: a session without a position begins at a random one.

-- Returns how many jobs a lane starts in its turn.
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
-- than jobs to claim, each lane gives as many more. A restricted claim (among) takes its jobs in plain order. A claim
-- that continues the turn of its first lane ends the round before it comes there again: otherwise it would pick the
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
