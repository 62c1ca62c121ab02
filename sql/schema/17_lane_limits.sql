-- Limits of each partition of a queue: how many of its jobs may run, and how many may start in a time.
--
-- The rows of `running` are the used places of a partition, as for concurrency limits. A claim counts them under
-- a lock of the lane that it only tries to get, by a statement that begins after it has the lock
-- (tests/models/lane.pml).
--
-- Each lane has a bucket of its own, once a job of it has started. A claim checks and takes the token of a lane under
-- the lock of the lane. A lane without a token is passed. If jobs wait in it, its bucket says when the next token comes:
-- supervisors wake a worker at that time, and its claim finds the lane by that time, without a walk through all lanes.

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
                THEN least(rule.each_running - jobherd.count_lane(rule, lane),
                           CASE WHEN rule.each_rate IS NOT NULL
                                THEN (jobherd.tokens_of(jobherd.pace_of(rule, lane))).tokens END)
                ELSE 0 END;
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

-- Clears the time of the next token: no job of the lane waits for it.
CREATE FUNCTION jobherd.forget_opening(rule jobherd.gates, lane text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.buckets b SET waiting_in = NULL, opens_at = NULL
     WHERE b.scope = 'lane' AND b.name = rule.name || ' ' || lane AND b.waiting_in IS NOT NULL;
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
