-- What single jobs cost while they run, where that is not what their kind declares: amounts by name. A table of its own, so that jobs
-- without a cost of their own carry nothing; its rows outlive what happens to their job, and the keeper drops those of jobs that are gone.
CREATE TABLE jobherd.demands (
    job  bigint PRIMARY KEY,
    cost jsonb  NOT NULL,
    CONSTRAINT demands_are_amounts CHECK (jsonb_typeof(cost) = 'object')
);

-- Say what a waiting job costs, in the caller's transaction; said again it counts anew. Returns the job's id, so that it fits around an
-- enqueue:
--   SELECT jobherd.demand(jobherd.enqueue('image:render', '{"width": 9000}'), '{"memory_mb": 900}');
CREATE FUNCTION jobherd.demand(job bigint, cost jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF cost IS NULL OR jsonb_typeof(cost) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.demand: cost must be an object of amounts, not %', coalesce(left(cost::text, 120), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Like {"memory_mb": 900}.';
    END IF;
    SELECT c.key INTO bad FROM jsonb_each(cost) AS c
     WHERE c.key !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(c.key) > 63 OR jsonb_typeof(c.value) <> 'number' OR c.value::text LIKE '-%' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.demand: cost "%" has a bad name or the bad amount %', left(bad, 120), left((cost -> bad)::text, 120)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Names of lower-case letters, digits and _ . - ; amounts of 0 or more.';
    END IF;
    IF NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = demand.job) AND NOT EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = demand.job) THEN
        RAISE EXCEPTION 'jobherd.demand: no job % is waiting', coalesce(demand.job::text, 'null') USING ERRCODE = 'no_data_found';
    END IF;
    INSERT INTO jobherd.demands AS d (job, cost) VALUES (demand.job, demand.cost)
    ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost;
    RETURN demand.job;
END $$;
