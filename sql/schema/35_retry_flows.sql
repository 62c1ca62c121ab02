-- A retry of a flow, whole or from a node on.
--
-- A retry counts the members of the flow again. Otherwise it would not wait for a member that was run again by hand after the
-- end of the flow, and the old state of such a member would stay in the counts.

-- Counts the members of a flow again, in one snapshot. The row of the flow must be locked. What `ends` holds is counted later,
-- so it is left out here. See the invariant of find_vanished_members.
CREATE FUNCTION jobherd.recount_flow(of_flow bigint)
RETURNS void
LANGUAGE sql
AS $$
    WITH past AS MATERIALIZED (
        SELECT DISTINCT ON (h.id) h.id, h.state, h.error_code FROM jobherd.history h
         WHERE (h.extras).flow = of_flow AND (h.extras).flow > 0 ORDER BY h.id, h.finished_at DESC
    ), places AS (
        SELECT CASE WHEN p.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' WHEN p.state = 'expired' THEN 'failed' ELSE p.state END AS place,
               count(*) AS jobs FROM past p GROUP BY 1
        UNION ALL SELECT i.state, count(*) FROM jobherd.flows i WHERE i.outer_flow = of_flow GROUP BY i.state
        UNION ALL SELECT 'open', count(*) FROM jobherd.ready r WHERE (r.extras).flow = of_flow AND (r.extras).flow > 0
        UNION ALL SELECT 'open', count(*) FROM jobherd.parked r WHERE (r.extras).flow = of_flow AND (r.extras).flow > 0
        UNION ALL SELECT 'open', count(*) FROM jobherd.scheduled r WHERE (r.extras).flow = of_flow AND (r.extras).flow > 0
        UNION ALL SELECT 'open', count(*) FROM jobherd.blocked r WHERE (r.extras).flow = of_flow AND (r.extras).flow > 0
        UNION ALL SELECT 'open', count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE (j.extras).flow = of_flow
        UNION ALL SELECT 'open', -coalesce(sum(e.delta), 0) FROM jobherd.ends e WHERE e.flow = of_flow
        UNION ALL SELECT CASE WHEN e.state = 'expired' THEN 'failed' ELSE e.state END, sum(e.delta) FROM jobherd.ends e WHERE e.flow = of_flow GROUP BY 1
    )
    UPDATE jobherd.flows f SET pending = c.pending, completed = c.completed, failed = c.failed, cancelled = c.cancelled
      FROM (SELECT coalesce(sum(p.jobs) FILTER (WHERE p.place = 'open'), 0) AS pending,
                   coalesce(sum(p.jobs) FILTER (WHERE p.place = 'completed'), 0) AS completed,
                   coalesce(sum(p.jobs) FILTER (WHERE p.place = 'failed'), 0) AS failed,
                   coalesce(sum(p.jobs) FILTER (WHERE p.place = 'cancelled'), 0) AS cancelled FROM places p) AS c
     WHERE f.id = of_flow
$$;

-- Returns the jobs and inner flows of a node and of all nodes behind it. Raises an error if the flow has no such node.
CREATE FUNCTION jobherd.members_from(of_flow bigint, node text)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    begins bigint[];
    found_ones bigint[];
BEGIN
    begins := array(SELECT h.id FROM jobherd.history h
                     WHERE (h.extras).flow = of_flow AND (h.extras).flow > 0 AND (h.extras).node = members_from.node
                    UNION
                    SELECT i.id FROM jobherd.flows i JOIN jobherd.flows o ON o.id = i.outer_flow
                     WHERE o.id = of_flow AND i.name = o.name || '/' || members_from.node);
    IF begins = '{}' THEN
        RAISE EXCEPTION 'jobherd.retry_flow: flow % has no job of a node % that has ended', of_flow, quote_literal(left(members_from.node, 120))
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Nodes: ' || coalesce((SELECT left(string_agg(n ->> 'node', ', '), 1000) FROM jobherd.flows f
                                                     CROSS JOIN LATERAL jsonb_array_elements(f.nodes) AS n
                                               WHERE f.id = of_flow AND NOT n ? 'on'), 'none') || '.';
    END IF;
    WITH RECURSIVE tied AS MATERIALIZED (
        SELECT e.upstream, e.downstream FROM jobherd.edges e WHERE e.flow = of_flow AND e.upstream <> of_flow
    ), down AS (
        SELECT b AS id FROM unnest(begins) AS b
        UNION
        SELECT t.downstream FROM down d JOIN tied t ON t.upstream = d.id
    )
    SELECT array_agg(d.id) INTO found_ones FROM down d;
    RETURN found_ones;
END $$;

-- Puts a node with a job for each item back to where it waits for its list. Its jobs stay in the history, outside of the flow.
-- Raises an error while one of them is live: its end would count in the new jobs.
CREATE FUNCTION jobherd.unmap_node(inner_flow bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old jobherd.flows;
    job jobherd.blocked;
BEGIN
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = inner_flow FOR UPDATE;
    PERFORM jobherd.recount_flow(inner_flow);
    IF old.mapped IS NULL OR EXISTS (SELECT FROM jobherd.ends e WHERE e.flow = inner_flow)
       OR (SELECT f.pending > 0 OR f.state = 'open' FROM jobherd.flows f WHERE f.id = inner_flow) THEN
        RAISE EXCEPTION 'jobherd.retry_flow: the jobs of node %, flow %, cannot be made again: %', quote_literal(left(old.name, 120)), inner_flow,
            CASE WHEN old.mapped IS NULL THEN 'they are from an earlier version' ELSE 'one of them was run again and has not ended' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Retry a node behind it, or start a new flow.';
    END IF;
    UPDATE jobherd.history h SET extras.flow = NULL, extras.node = NULL, extras.item = NULL
     WHERE (h.extras).flow = inner_flow AND (h.extras).flow > 0;
    DELETE FROM jobherd.results r WHERE r.flow = inner_flow;
    DELETE FROM jobherd.flows f WHERE f.id = inner_flow;
    job := json_populate_record(NULL::jobherd.blocked, old.mapped);
    job.run_at := now();
    INSERT INTO jobherd.blocked SELECT job.*;
    INSERT INTO jobherd.ends (flow, job, state, delta) VALUES (old.outer_flow, inner_flow, old.state, 1);
END $$;

-- Runs the failed and canceled members of a flow again, and lets wait again what waits for them. Completed members stay.
-- With a node, that node and all behind it run again, and what did not complete of what these need.
CREATE FUNCTION jobherd.retry_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL, from_node text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    old    jobherd.flows;
    jobs   bigint[];
    more   bigint[];
    inner_flow bigint;
    same   bigint;
    again  bigint;
    total  bigint := 0;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own_flow(flow_id, actor, reason, from_node);
    END IF;
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id FOR UPDATE;
    IF NOT FOUND OR old.state = 'open' OR (old.state = 'completed' AND from_node IS NULL) THEN
        RETURN CASE WHEN FOUND THEN 0 END;
    END IF;
    SELECT f.id INTO same FROM jobherd.flows f
     WHERE f.name = old.name AND f.unique_key = old.unique_key AND f.tenant IS NOT DISTINCT FROM old.tenant AND f.state = 'open';
    IF FOUND THEN
        RAISE EXCEPTION 'jobherd.retry_flow: flow % has the same unique key, and is open', same
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Wait for its end, or cancel it.';
    END IF;
    -- Race: waits for processes that are passing on an end of this flow or of its members. What they cancel runs again too.
    PERFORM FROM jobherd.ends e
      WHERE e.flow = 0 AND (e.job = flow_id OR EXISTS (SELECT FROM jobherd.history h
                                                        WHERE h.id = e.job AND (h.extras).flow = flow_id AND (h.extras).flow > 0))
      ORDER BY e.id FOR UPDATE;
    PERFORM jobherd.recount_flow(flow_id);
    IF from_node IS NULL THEN
        jobs := array(SELECT DISTINCT h.id FROM jobherd.history h
                       WHERE (h.extras).flow = flow_id AND (h.extras).flow > 0 AND h.state <> 'completed'
                         AND h.error_code IS DISTINCT FROM 'UPSTREAM_COMPLETED');
        FOR inner_flow IN SELECT f.id FROM jobherd.flows f WHERE f.outer_flow = flow_id AND f.state IN ('failed', 'cancelled') ORDER BY f.id LOOP
            total := total + jobherd.retry_flow(inner_flow, actor, reason);
            jobs := jobs || inner_flow;
        END LOOP;
    ELSE
        jobs := jobherd.members_from(flow_id, from_node);
        FOR inner_flow IN SELECT f.id FROM jobherd.flows f WHERE f.outer_flow = flow_id AND f.id = ANY (jobs) ORDER BY f.id LOOP
            UPDATE jobherd.edges e SET state = NULL, result = NULL, marked = false WHERE e.downstream = inner_flow AND e.flow = flow_id;
            PERFORM jobherd.unmap_node(inner_flow);
            total := total + 1;
        END LOOP;
    END IF;
    -- What these need, and what was canceled or not needed because of them, runs again too: with a node, a branch that was
    -- canceled when the flow failed would otherwise cancel what joins it.
    LOOP
        more := array(SELECT DISTINCT h.id
                        FROM (SELECT e.downstream AS job, NULL AS wanted FROM jobherd.edges e WHERE e.flow = flow_id AND e.upstream = ANY (jobs)
                              UNION ALL
                              SELECT e.upstream, e.wanted FROM jobherd.edges e WHERE e.flow = flow_id AND e.downstream = ANY (jobs)) AS n
                        JOIN jobherd.history h ON h.id = n.job
                       WHERE (h.extras).flow = flow_id AND h.state <> 'completed' AND h.id <> ALL (jobs)
                         AND (n.wanted IS NULL OR NOT jobherd.is_wanted(n.wanted, h.state) AND h.error_code IS DISTINCT FROM 'UPSTREAM_COMPLETED'));
        FOR inner_flow IN SELECT DISTINCT f.id FROM jobherd.edges e JOIN jobherd.flows f ON f.id = e.upstream
                           WHERE e.flow = flow_id AND e.downstream = ANY (jobs) AND f.outer_flow = flow_id
                             AND f.state IN ('failed', 'cancelled') AND f.id <> ALL (jobs) ORDER BY f.id LOOP
            total := total + jobherd.retry_flow(inner_flow, actor, reason);
            more := more || inner_flow;
        END LOOP;
        EXIT WHEN more = '{}';
        jobs := jobs || more;
    END LOOP;
    -- An end that is not passed on yet does not count: it would cancel what waits for the job that runs again.
    more := jobs || flow_id;
    DELETE FROM jobherd.ends e WHERE e.flow = 0 AND e.job = ANY (more);
    -- Not marked: what became of an upstream job that is not run again is looked up. It may have been run again by hand.
    UPDATE jobherd.edges e SET state = NULL, result = NULL, marked = false
     WHERE e.downstream = ANY (jobs) AND e.flow = flow_id
       AND (e.upstream = ANY (jobs) OR e.state = 'unknown' OR NOT jobherd.is_wanted(e.wanted, e.state));
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
        INSERT INTO jobherd.ends (flow, job, state, delta)
        SELECT flow_id, o.id, CASE WHEN o.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE o.state END, 1 FROM over o
    ), waits AS MATERIALIZED (
        SELECT o.*, EXISTS (SELECT FROM jobherd.edges e WHERE e.downstream = o.id AND e.state IS NULL) AS held FROM over o
    ), blocked AS (
        INSERT INTO jobherd.blocked (id, created_at, run_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT id, created_at, now(), timeout, priority, max_attempts, queue, kind, jobherd.without_results(id, payload), extras,
               jobherd.lane_of((extras).partition)
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
         WHERE e.upstream = flow_id AND e.flow = flow_id AND h.id = e.downstream AND h.state = 'cancelled'
           AND h.error_code IN ('UPSTREAM_FAILED', 'UPSTREAM_COMPLETED') RETURNING h.*
    ), again AS (
        INSERT INTO jobherd.blocked (id, created_at, run_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT id, created_at, now(), timeout, priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
          FROM over
    )
    UPDATE jobherd.edges e SET state = NULL, marked = true WHERE e.upstream = flow_id AND e.flow = flow_id AND e.downstream IN (SELECT id FROM over);
    DELETE FROM jobherd.cancels x WHERE x.job = ANY (jobs);
    UPDATE jobherd.flows f SET state = 'open', ended_at = NULL, stopping = NULL, deadline = NULL WHERE f.id = flow_id;
    -- The flow is counted even if nothing of it runs again. The flow around it waits for it again.
    INSERT INTO jobherd.ends (flow, delta) VALUES (flow_id, 0);
    INSERT INTO jobherd.ends (flow, job, state, delta) SELECT old.outer_flow, flow_id, old.state, 1 WHERE old.outer_flow IS NOT NULL;
    PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_strip_nulls(jsonb_build_object('flow', flow_id, 'from', from_node)), reason);
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN total;
END $$;
COMMENT ON FUNCTION jobherd.retry_flow(bigint, text, text, text) IS
    'Runs a flow that has failed or was canceled again, from where it failed: completed jobs stay. With from_node, runs that node '
    'and all nodes behind it again, also of a completed flow. Nodes whose results they need run again too, unless they completed. '
    'Returns how many jobs run again, '
    '0 if the flow is open or completed, or null if the flow does not exist.';

-- Returns the payload of a job without the results that it has got. They are bound again when it is released.
CREATE FUNCTION jobherd.without_results(job bigint, payload json)
RETURNS json
LANGUAGE plpgsql
AS $$
BEGIN
    IF json_typeof(payload) = 'object'
       AND EXISTS (SELECT FROM jobherd.edges e WHERE e.downstream = job AND e.argument IS NOT NULL AND (payload -> e.argument) IS NOT NULL) THEN
        RETURN (SELECT coalesce(json_object_agg(p.key, p.value), '{}') FROM json_each(payload) AS p
                 WHERE NOT EXISTS (SELECT FROM jobherd.edges e WHERE e.downstream = job AND e.argument = p.key));
    END IF;
    RETURN payload;
END $$;

CREATE FUNCTION jobherd.retry_own_flow(flow_id bigint, actor text, reason text, from_node text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.flows f WHERE f.id = flow_id AND f.tenant = ANY (jobherd.own_tenants())) THEN
        RETURN jobherd.retry_flow(flow_id, actor, reason, from_node);
    END IF;
    RETURN NULL;
END $$;
