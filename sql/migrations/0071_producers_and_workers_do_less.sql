-- Costs of jobs. A producer could read and change those of any job: now it says what its own jobs cost, by a function, in the transaction that
-- enqueues them. `now()` is the start of a transaction, and no producer chooses created_at, so equal times mean the same transaction.
CREATE FUNCTION jobherd.demand_own(jobs bigint[], costs jsonb[]) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said integer;
BEGIN
    RETURN QUERY
        INSERT INTO jobherd.demands AS d (job, cost)
        SELECT g.job, g.cost FROM unnest(demand_own.jobs, demand_own.costs) AS g (job, cost)
         WHERE EXISTS (SELECT FROM jobherd.ready r WHERE r.id = g.job AND r.created_at = now())
            OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = g.job AND s.created_at = now())
        ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost
        RETURNING d.job;
    GET DIAGNOSTICS said = ROW_COUNT;
    IF said < cardinality(demand_own.jobs) THEN
        RAISE EXCEPTION 'jobherd.demand: a job was not enqueued by this transaction'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Say what a job costs in the transaction that enqueues it.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION jobherd.demand(job bigint, cost jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
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
    IF NOT has_table_privilege('jobherd.demands', 'UPDATE') THEN
        RETURN (SELECT jobherd.demand_own(ARRAY[demand.job], ARRAY[demand.cost]));
    END IF;
    INSERT INTO jobherd.demands AS d (job, cost) VALUES (demand.job, demand.cost)
    ON CONFLICT ON CONSTRAINT demands_pkey DO UPDATE SET cost = excluded.cost;
    RETURN demand.job;
END $$;

-- The audit log. A worker's role could erase any entry: this function drops old ones and no others. The setting audit_keep has the same least value.
CREATE FUNCTION jobherd.drop_audit(keep double precision, most integer) RETURNS SETOF bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Entries are numbered in the order of their time, but for a transaction's length: only the first ones are read.
    DELETE FROM jobherd.audit
     WHERE id IN (SELECT first.id FROM (SELECT a.id, a.at FROM jobherd.audit a ORDER BY a.id LIMIT drop_audit.most) AS first
                   WHERE first.at < clock_timestamp() - make_interval(secs => greatest(drop_audit.keep, 86400)))
    RETURNING id
$$;

-- A role that is no operator's, a worker's or a tenant's, could write any entry under any name. What it does itself is entered under its own name.
CREATE OR REPLACE FUNCTION jobherd.note_unless_noted(actor text, action text, target jsonb, reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    operates CONSTANT boolean := has_function_privilege(coalesce(nullif(current_setting('role', true), 'none'), session_user)::name,
                                                        'jobherd.note_audit(text, text, jsonb, text)', 'EXECUTE');
    named text := nullif(note_unless_noted.actor, '');
BEGIN
    IF operates AND current_setting('jobherd.noted', true) = 'yes' THEN
        RETURN;
    END IF;
    IF NOT operates THEN
        IF note_unless_noted.action NOT IN ('cancel', 'retry', 'resume') THEN
            RAISE EXCEPTION 'jobherd: role % may not enter % into the audit log', quote_ident(session_user), quote_literal(left(note_unless_noted.action, 100))
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        named := CASE WHEN note_unless_noted.action = 'resume' AND named = 'keeper' THEN named END;
    END IF;
    INSERT INTO jobherd.audit (actor, role, action, target, reason)
    VALUES (left(coalesce(named, session_user), 200), session_user, note_unless_noted.action,
            note_unless_noted.target, left(nullif(note_unless_noted.reason, ''), 2000));
END $$;
