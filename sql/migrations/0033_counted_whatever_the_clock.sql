-- What ends after the server's clock was set back is counted: a look began where the last one had ended, which was in the future, and what had
-- ended before that time was looked for no more.
CREATE OR REPLACE FUNCTION jobherd.count_past(span interval, lag interval, OUT jobs bigint, OUT behind boolean) RETURNS record
    LANGUAGE plpgsql
    SET enable_bitmapscan TO 'on'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    last  jobherd.rollup_mark;
    this  jobherd.rollup_mark;
    gap   jobherd.rollup_gaps;
    early timestamptz;
    since timestamptz;
    moved boolean := false;
BEGIN
    jobs := 0;
    behind := false;
    IF NOT pg_try_advisory_xact_lock(hashtext('jobherd.count_past')) THEN
        RETURN;
    END IF;
    SELECT * INTO last FROM jobherd.rollup_mark;
    this.at := clock_timestamp();
    -- In one statement, or a claim that ends in between would be in neither.
    SELECT pg_current_snapshot(), coalesce(array_agg(j.id), '{}') INTO this.seen, this.pending
      FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE r.claimed_at < this.at - lag;
    IF last.at IS NULL OR pg_snapshot_xmax(last.seen) > pg_snapshot_xmax(this.seen) THEN
        -- The first look of all, or the mark came with a dump from another server, whose transactions have other numbers.
        UPDATE jobherd.rollup_gaps SET seen = NULL, until = this.seen;
        INSERT INTO jobherd.rollup_gaps (from_at, to_at, until)
        SELECT coalesce(last.at, this.at - interval '8 days'), this.at + interval '1 second', this.seen WHERE EXISTS (SELECT FROM jobherd.history);
        moved := true;
    ELSE
        -- A mark in the future is from before the clock was set back: what has ended since ended before it, nobody knows by how much.
        early := CASE WHEN last.at > this.at THEN this.at - interval '1 hour' ELSE last.at END - lag;
        since := greatest(early, this.at - span);
        IF early < since AND EXISTS (SELECT FROM jobherd.history h WHERE h.finished_at >= early AND h.finished_at < since) THEN
            INSERT INTO jobherd.rollup_gaps (from_at, to_at, seen, until) VALUES (early, since, last.seen, this.seen);
            moved := true;
        END IF;
        jobs := jobherd.count_ended(since, 'infinity', last.seen, this.seen,
                                    ARRAY(SELECT unnest(last.pending) EXCEPT SELECT unnest(this.pending)), early);
    END IF;
    -- Where nothing has ended nothing is written; only a mark that gets old is moved, or the next look would have to go far back.
    IF moved OR jobs > 0 OR last.at NOT BETWEEN this.at - interval '10 minutes' AND this.at THEN
        INSERT INTO jobherd.rollup_mark (at, seen, pending) VALUES (this.at, this.seen, this.pending)
        ON CONFLICT (one) DO UPDATE SET at = excluded.at, seen = excluded.seen, pending = excluded.pending;
    END IF;
    SELECT * INTO gap FROM jobherd.rollup_gaps ORDER BY to_at DESC LIMIT 1;
    IF FOUND THEN
        since := greatest(gap.from_at, gap.to_at - span);
        jobs := jobs + jobherd.count_ended(since, gap.to_at, gap.seen, gap.until, '{}', NULL);
        IF since > gap.from_at THEN
            UPDATE jobherd.rollup_gaps SET to_at = since WHERE id = gap.id;
        ELSE
            DELETE FROM jobherd.rollup_gaps WHERE id = gap.id;
        END IF;
        behind := EXISTS (SELECT FROM jobherd.rollup_gaps);
    END IF;
END $$;
