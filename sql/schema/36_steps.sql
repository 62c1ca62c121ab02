-- Durable steps: what a handler has done already, so that a retry does not do it again.
--
-- A record is written by the attempt that did the step, if its claim still exists (jobherd.record_step). It
-- stays when the attempt fails, and a retry by hand of a failed job continues with it. A completed job that is run again
-- begins from the start: its records are deleted together with its row in the history.

CREATE TABLE jobherd.steps (
    job     bigint      NOT NULL,
    name    text COLLATE "C" NOT NULL,
    result  json,                                       -- as the kind's results: encrypted if they are
    token   bigint      NOT NULL,                       -- of the claim under which it was recorded
    attempt integer     NOT NULL,
    version integer     NOT NULL,                       -- of the handler that recorded it
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    signal  bigint,                                     -- which the step has taken
    PRIMARY KEY (job, name)
)
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.steps IS 'Steps of jobs that are done, with their results. Deleted with their jobs.';

-- Records a step of a running job. Returns whether its claim exists; if it is lost, nothing is written.
--
-- Fencing: the row of the claim is locked until the record is committed, by the weakest lock. A settlement waits for it,
-- and then finds it again. Called twice if an answer was lost, so a record of this claim is not an error.
-- Cost: a function keeps its plans. As a statement, most of its time was planning.
CREATE FUNCTION jobherd.record_step(
    of_child bigint, of_token bigint, of_job bigint, of_name text, of_result text, of_attempt integer, of_version integer
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM jobherd.running r
      WHERE r.child = of_child AND r.token = of_token AND EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = of_job)
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO jobherd.steps AS s (job, name, result, token, attempt, version)
    VALUES (of_job, of_name, of_result::json, of_token, of_attempt, of_version)
    ON CONFLICT (job, name) DO UPDATE SET at = s.at WHERE s.token = excluded.token;
    RETURN FOUND;
END $$;

-- Trigger on `history`. Only a retry by hand, a deletion and a purge delete rows there: partitions are dropped.
CREATE FUNCTION jobherd.forget_steps()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM jobherd.steps WHERE job = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_steps AFTER DELETE ON jobherd.history FOR EACH ROW WHEN (OLD.state = 'completed')
    EXECUTE FUNCTION jobherd.forget_steps();

-- Deletes the steps of jobs that no longer exist, among the `most` jobs with the lowest ids behind `past`. Returns the last
-- of these jobs, null if there are no more. One snapshot says where each job is, so a job that moves is found.
CREATE FUNCTION jobherd.sweep_steps(past bigint, most integer, OUT last bigint, OUT deleted bigint)
LANGUAGE plpgsql
SET jit = off
AS $$
DECLARE
    found bigint[];
BEGIN
    WITH RECURSIVE each (job, place) AS (  -- Cost: one look into the index for each job, however many steps it has
        SELECT min(s.job), 1 FROM jobherd.steps s WHERE s.job > coalesce(past, 0)
        UNION ALL
        SELECT (SELECT min(s.job) FROM jobherd.steps s WHERE s.job > each.job), place + 1 FROM each WHERE job IS NOT NULL AND place < most
    )
    SELECT array_agg(job ORDER BY job) INTO found FROM each WHERE job IS NOT NULL;
    deleted := 0;
    IF found IS NULL THEN
        RETURN;
    END IF;
    WITH running AS MATERIALIZED (
        SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
    ), dead AS MATERIALIZED (  -- subqueries, not joins: a live job is found by its first look
        SELECT f.job FROM unnest(found) AS f (job)
         WHERE (SELECT true FROM jobherd.scheduled s WHERE s.id = f.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.ready r WHERE r.id = f.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.parked p WHERE p.id = f.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.blocked b WHERE b.id = f.job) IS NOT TRUE
           AND f.job NOT IN (SELECT r.id FROM running r)
           AND (SELECT true FROM jobherd.history h WHERE h.id = f.job LIMIT 1) IS NOT TRUE
    ), gone AS (
        DELETE FROM jobherd.steps s WHERE s.job = ANY (ARRAY(SELECT job FROM dead)) RETURNING true
    )
    SELECT count(*) INTO deleted FROM gone;
    last := found[cardinality(found)];
END $$;
