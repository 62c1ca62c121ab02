-- A cap counts what was claimed before anybody could see it, however long its commit takes: while one waits for a synchronous standby nobody sees it, and what was
-- claimed more than 10 s after it had been written was not counted. So a keeper notes when it sees the cap, and until then all claims count.
ALTER TABLE jobherd.gates ADD COLUMN seen_at timestamptz;

DROP TRIGGER capped ON jobherd.gates;

CREATE OR REPLACE FUNCTION jobherd.cap_from_here() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.seen_at := NULL;
    RETURN NEW;
END $$;

CREATE TRIGGER capped BEFORE UPDATE OF capped_at ON jobherd.gates FOR EACH ROW WHEN (NEW.capped_at IS DISTINCT FROM OLD.capped_at)
    EXECUTE FUNCTION jobherd.cap_from_here();

-- capped_at is given by older statements, and not looked at.
CREATE OR REPLACE FUNCTION jobherd.count_running(scope text, name text, capped_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    until CONSTANT timestamptz := coalesce((SELECT g.seen_at FROM jobherd.gates g WHERE g.scope = count_running.scope AND g.name = count_running.name)
                                           + interval '10 s', 'infinity');
BEGIN
    IF scope = 'queue' THEN
        RETURN (SELECT count(*) FROM jobherd.running r WHERE r.queue = count_running.name AND r.kind IS NOT NULL)
             + (SELECT coalesce(sum(cardinality(r.jobs)), 0) FROM jobherd.running r
                 WHERE r.kind IS NULL AND r.claimed_at < until AND r.queue = count_running.name);
    END IF;
    RETURN (SELECT count(*) FROM jobherd.running r WHERE r.kind = count_running.name)
         + (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE r.kind IS NULL AND r.claimed_at < until AND j.kind = count_running.name);
END $$;
