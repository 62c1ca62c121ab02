-- The runs that fill the rollup (26_rollup.sql), and what reads its buckets.

-- One run: counts what finished since the last one, and a part of a gap. span: how much time one run
-- may count. A longer time (a fleet without a maintenance process for hours, the history before the
-- first run) becomes a gap, and gaps are counted in parts, the latest first. behind: there are gaps.
-- Only one maintenance process runs it at a time; another one returns at once.
CREATE FUNCTION jobherd.count_past(span interval, lag interval, OUT jobs bigint, OUT behind boolean)
RETURNS record
LANGUAGE plpgsql
SET enable_bitmapscan = on
SET enable_seqscan = off
SET jit = off
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
    -- In one statement: otherwise a claim that ends in between would be in neither.
    SELECT pg_current_snapshot(), coalesce(array_agg(j.id), '{}') INTO this.seen, this.pending
      FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE r.claimed_at < this.at - lag;
    IF last.at IS NULL OR pg_snapshot_xmax(last.seen) > pg_snapshot_xmax(this.seen) THEN
        -- The first run, or the mark came with a dump from another server, whose transactions have other numbers.
        UPDATE jobherd.rollup_gaps SET seen = NULL, until = this.seen;
        INSERT INTO jobherd.rollup_gaps (from_at, to_at, until)
        SELECT coalesce(last.at, this.at - interval '8 days'), this.at + interval '1 second', this.seen
         WHERE EXISTS (SELECT FROM jobherd.history) OR EXISTS (SELECT FROM jobherd.attempts);
        moved := true;
    ELSE
        -- A mark in the future is from before the clock was set back. What has finished since then finished
        -- before it, by an unknown time.
        early := CASE WHEN last.at > this.at THEN this.at - interval '1 hour' ELSE last.at END - lag;
        since := greatest(early, this.at - span);
        IF early < since AND (EXISTS (SELECT FROM jobherd.history h
                                       WHERE h.finished_at >= early AND h.finished_at < since)
                              OR EXISTS (SELECT FROM jobherd.attempts a
                                          WHERE a.finished_at >= early AND a.finished_at < since)) THEN
            INSERT INTO jobherd.rollup_gaps (from_at, to_at, seen, until) VALUES (early, since, last.seen, this.seen);
            moved := true;
        END IF;
        jobs := jobherd.count_ended(since, 'infinity', last.seen, this.seen,
                                    ARRAY(SELECT unnest(last.pending) EXCEPT SELECT unnest(this.pending)), early);
    END IF;
    -- If no job has finished, nothing is written. Only an old mark is moved: otherwise the next run would have to read
    -- far back.
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

-- Returns the duration that a share of the jobs does not exceed, as far as this bucket knows. Of
-- `total` jobs, `upto` are in it or in lower ones, and `jobs` in itself. Null below the bucket that
-- holds it: take the minimum. Assumes an even spread within a bucket, so the error is a tenth at most.
CREATE FUNCTION jobherd.rollup_quantile(
    share double precision, bucket smallint, jobs double precision, upto double precision, total double precision
)
RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN upto >= share * total
                THEN 0.00001 * power(2, (bucket - 1 + greatest(0, (share * total - (upto - jobs)) / jobs)) / 4) END
$$;
