-- Which job of a queue is next, if its partitions have a limit (17_lane_limits.sql). Also how parked jobs return to their
-- lanes.

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
-- soon. A claim checks 500 lanes, and the next one continues there, until one round has found nothing. If lanes
-- that waited for a token have one now, it checks 20 lanes and then those.
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
