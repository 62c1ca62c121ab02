-- Actions of users on flows: cancel and retry.

CREATE FUNCTION jobherd.cancel_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own_flow(flow_id, actor, reason);
    END IF;
    UPDATE jobherd.flows f SET stopping = coalesce(f.stopping, 'the flow was canceled') WHERE f.id = flow_id AND f.state = 'open'
    RETURNING 'cancelling' INTO answer;
    IF answer IS NOT NULL THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('flow', flow_id), reason);
        PERFORM jobherd.notify('jobherd_jobs', '@due');
        RETURN answer;
    END IF;
    RETURN (SELECT f.state FROM jobherd.flows f WHERE f.id = flow_id);
END $$;
COMMENT ON FUNCTION jobherd.cancel_flow(bigint, text, text) IS
    'Cancels all jobs of a flow. Returns ''cancelling'', the state of a flow that has ended, or null if the flow does not exist.';

-- `cancel_flow` and `retry_flow` for a tenant, which may write none of the tables. The flow of another tenant counts as missing.
CREATE FUNCTION jobherd.cancel_own_flow(flow_id bigint, actor text, reason text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.flows f WHERE f.id = flow_id AND f.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.cancel_flow(flow_id, actor, reason);
    END IF;
    RETURN NULL;
END $$;

-- Runs the failed and canceled members of a flow again, and lets wait again what waits for them. Completed members stay.
CREATE FUNCTION jobherd.retry_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    old    jobherd.flows;
    jobs   bigint[];
    inner_flow bigint;
    again  bigint;
    total  bigint := 0;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own_flow(flow_id, actor, reason);
    END IF;
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id FOR UPDATE;
    IF NOT FOUND OR old.state IN ('open', 'completed') THEN
        RETURN CASE WHEN FOUND THEN 0 END;
    END IF;
    jobs := array(SELECT DISTINCT h.id FROM jobherd.history h
                   WHERE (h.extras).flow = flow_id AND (h.extras).flow > 0 AND h.state <> 'completed'
                     AND h.error_code IS DISTINCT FROM 'UPSTREAM_COMPLETED');
    FOR inner_flow IN SELECT f.id FROM jobherd.flows f WHERE f.outer_flow = flow_id AND f.state IN ('failed', 'cancelled') LOOP
        again := jobherd.retry_flow(inner_flow, actor, reason);
        IF again > 0 THEN
            jobs := jobs || inner_flow;
            total := total + again;
        END IF;
    END LOOP;
    -- Not marked: what became of an upstream job that is not run again is looked up.
    UPDATE jobherd.edges e SET state = NULL, result = NULL, marked = false
     WHERE e.downstream = ANY (jobs) AND e.flow = flow_id AND (e.upstream = ANY (jobs) OR e.state = 'unknown');
    WITH over AS (
        DELETE FROM jobherd.history h WHERE h.id = ANY (jobs) RETURNING h.*
    ), past AS (
        INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                      ran_on, usage, post_mortem)
        SELECT id, token, attempts, state, started_at, finished_at,
               (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30),
               error_code, error, traceback, ran_on, usage, post_mortem
          FROM over WHERE started_at IS NOT NULL
    ), counted AS (
        INSERT INTO jobherd.ends (flow, job, state, delta) SELECT flow_id, o.id, o.state, 1 FROM over o
    ), waits AS MATERIALIZED (
        SELECT o.*, EXISTS (SELECT FROM jobherd.edges e WHERE e.downstream = o.id AND e.state IS NULL) AS held FROM over o
    ), blocked AS (
        INSERT INTO jobherd.blocked (id, created_at, run_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT id, created_at, now(), timeout, priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
          FROM waits WHERE held
    ), ready AS (
        INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
               priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
          FROM waits WHERE NOT held
    )
    SELECT total + count(*) INTO total FROM over;
    -- what waits for the flow itself, and was canceled with it
    WITH over AS (
        DELETE FROM jobherd.history h USING jobherd.edges e
         WHERE e.upstream = flow_id AND h.id = e.downstream AND h.state = 'cancelled' AND h.error_code = 'UPSTREAM_FAILED' RETURNING h.*
    ), again AS (
        INSERT INTO jobherd.blocked (id, created_at, run_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT id, created_at, now(), timeout, priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
          FROM over
    )
    UPDATE jobherd.edges e SET state = NULL, marked = true WHERE e.upstream = flow_id AND e.downstream IN (SELECT id FROM over);
    DELETE FROM jobherd.cancels x WHERE x.job = ANY (jobs);
    UPDATE jobherd.flows f SET state = 'open', ended_at = NULL, stopping = NULL, deadline = NULL WHERE f.id = flow_id;
    -- The flow around it waits for it again, also if only this one is run again.
    INSERT INTO jobherd.ends (flow, job, state, delta) SELECT old.outer_flow, flow_id, old.state, 1 WHERE old.outer_flow IS NOT NULL;
    PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('flow', flow_id), reason);
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN total;
END $$;
COMMENT ON FUNCTION jobherd.retry_flow(bigint, text, text) IS
    'Runs a flow that has failed or was canceled again, from where it failed: completed jobs stay. Returns how many jobs run again, '
    '0 if the flow is open or completed, or null if the flow does not exist.';

CREATE FUNCTION jobherd.retry_own_flow(flow_id bigint, actor text, reason text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.flows f WHERE f.id = flow_id AND f.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.retry_flow(flow_id, actor, reason);
    END IF;
    RETURN NULL;
END $$;
