-- Costs of single jobs (table `demands`): what a job uses of a supervisor's budget while it runs.

-- Jobs whose cost is not the one that their kind declares. A separate table: jobs without a cost of
-- their own write nothing. The maintenance process deletes rows of jobs that no longer exist.
-- Without the check, a text among the amounts would reject every claim of a supervisor with a
-- budget, and a negative amount would make room that does not exist.
CREATE TABLE jobherd.demands (
    job  bigint PRIMARY KEY,
    cost jsonb  NOT NULL,                               -- amounts by name
    CONSTRAINT demands_are_amounts CHECK (
        jsonb_typeof(cost) = 'object'
        AND NOT jsonb_path_exists(cost, 'strict $.* ? (@.type() != "number" || @ < 0)', '{}', true))
);
COMMENT ON TABLE jobherd.demands IS 'What single jobs cost of a supervisor''s budget while they run.';

-- Sets the costs of jobs that this transaction has enqueued. As the owner: a producer may not read or
-- change the costs of other jobs. now() is the start of the transaction and no producer chooses
-- created_at, so equal times mean the same transaction.
CREATE FUNCTION jobherd.demand_own(jobs bigint[], costs jsonb[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    said integer;
BEGIN
    RETURN QUERY
        INSERT INTO jobherd.demands AS d (job, cost)
        SELECT g.job, g.cost FROM unnest(demand_own.jobs, demand_own.costs) AS g (job, cost)
         WHERE EXISTS (SELECT FROM jobherd.ready r WHERE r.id = g.job AND r.created_at = now())
            OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = g.job AND s.created_at = now())
            OR EXISTS (SELECT FROM jobherd.blocked b WHERE b.id = g.job AND b.created_at = now())
        ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost
        RETURNING d.job;
    GET DIAGNOSTICS said = ROW_COUNT;
    IF said < cardinality(demand_own.jobs) THEN
        RAISE EXCEPTION 'jobherd.demand: a job was not enqueued by this transaction'
            USING ERRCODE = 'insufficient_privilege',
                HINT = 'Set the cost of a job in the transaction that enqueues it.';
    END IF;
END $$;

CREATE FUNCTION jobherd.demand(job bigint, cost jsonb)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    bad   text;
    waits boolean;
BEGIN
    IF cost IS NULL OR jsonb_typeof(cost) <> 'object' THEN
        RAISE EXCEPTION 'jobherd.demand: cost must be an object of amounts, not %',
            coalesce(left(cost::text, 120), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Like {"memory_mb": 900}.';
    END IF;
    SELECT c.key INTO bad FROM jsonb_each(cost) AS c
     WHERE c.key !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(c.key) > 63 OR jsonb_typeof(c.value) <> 'number'
        OR c.value::text LIKE '-%' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.demand: cost "%" has a bad name or the bad amount %', left(bad, 120),
            left((cost -> bad)::text, 120)
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Names of lower-case letters, digits and _ . - ; amounts of 0 or more.';
    END IF;
    waits := EXISTS (SELECT FROM jobherd.ready r WHERE r.id = demand.job)
        OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = demand.job);
    -- A producer may not read parked jobs, and its own transaction has none.
    IF NOT waits AND has_table_privilege('jobherd.parked', 'SELECT') THEN
        waits := EXISTS (SELECT FROM jobherd.parked p WHERE p.id = demand.job);
    END IF;
    IF NOT waits THEN
        RAISE EXCEPTION 'jobherd.demand: no job % is waiting', coalesce(demand.job::text, 'null')
            USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT has_table_privilege('jobherd.demands', 'UPDATE') THEN
        RETURN (SELECT jobherd.demand_own(ARRAY[demand.job], ARRAY[demand.cost]));
    END IF;
    INSERT INTO jobherd.demands AS d (job, cost) VALUES (demand.job, demand.cost)
    ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost;
    RETURN demand.job;
END $$;
COMMENT ON FUNCTION jobherd.demand(bigint, jsonb) IS
    'Sets what a waiting job costs of a budget, and returns its id. SELECT '
    'jobherd.demand(jobherd.enqueue(''image:render'', ''{"width": 9000}''), ''{"memory_mb": 900}'');';
