-- Results that jobs of a flow get from the jobs for which they wait.

-- Returns the result of a job, or of all members of a flow as a list in the order of their items. Null: those are too large.
CREATE FUNCTION jobherd.result_of(job bigint)
RETURNS json
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.flows f WHERE f.id = job) THEN
        -- More would not fit into a payload, and much more not into memory. Null: bind_results says why.
        IF (SELECT sum(octet_length(r.result::text)) > 10000000 FROM jobherd.results r WHERE r.flow = job) THEN
            RETURN NULL;
        END IF;
        -- Not jsonb_agg: a result may hold what jsonb rejects, such as a zero character.
        RETURN ('[' || coalesce((SELECT string_agg(coalesce(r.result::text, 'null'), ',' ORDER BY r.item)
                                   FROM jobherd.results r WHERE r.flow = job), '') || ']')::json;
    END IF;
    RETURN (SELECT h.result FROM jobherd.history h WHERE h.id = job ORDER BY h.finished_at DESC LIMIT 1);
END $$;

-- Returns a payload with one more key: an object as text.
CREATE FUNCTION jobherd.with_argument(payload text, argument text, value text)
RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN payload ~ '^\s*\{\s*\}\s*$' THEN '{' ELSE regexp_replace(payload, '\}\s*$', ',') END
           || to_json(argument)::text || ':' || coalesce(value, 'null') || '}'
$$;

-- Ends a blocked job that cannot get its results.
CREATE FUNCTION jobherd.fail_blocked(blocked_id bigint, wrong text)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    job jobherd.blocked;
BEGIN
    SELECT * INTO job FROM jobherd.blocked b WHERE b.id = blocked_id;
    DELETE FROM jobherd.blocked b WHERE b.id = job.id;
    INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes, state, queue,
                                 kind, payload, extras, timeout, error_code, error)
    VALUES (job.id, job.created_at, job.run_at, clock_timestamp(),
            (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = job.kind), 30), job.priority,
            job.attempts, job.max_attempts, job.crashes, 'failed', job.queue, job.kind, job.payload, job.extras, job.timeout,
            'RESULTS_INVALID', wrong);
END $$;

-- Writes results into the payload of a blocked job that is about to start. A job for each item of a list becomes an inner flow
-- with the id of the blocked job; then 1 is returned. A job that cannot get its results fails here, and 1 is returned.
CREATE FUNCTION jobherd.bind_results(blocked_id bigint)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    job    jobherd.blocked;
    body   text;
    edge   record;
    spread text;
    list   json;
    wrong  text;
    items  text[];
    flow   bigint;
BEGIN
    SELECT * INTO job FROM jobherd.blocked b WHERE b.id = blocked_id;
    body := job.payload::text;
    FOR edge IN SELECT * FROM jobherd.edges e WHERE e.downstream = blocked_id AND e.argument IS NOT NULL ORDER BY e.argument LOOP
        -- The results of a flow: see result_of.
        IF edge.result IS NULL AND EXISTS (SELECT FROM jobherd.flows f WHERE f.id = edge.upstream) THEN
            wrong := format('the results that it gets have more than %s bytes: return keys of stored data instead', 10000000);
        END IF;
        IF edge.spread THEN
            spread := edge.argument;
            list := edge.result;
            IF wrong IS NOT NULL THEN
                CONTINUE;
            ELSIF json_typeof(coalesce(edge.result, 'null')) <> 'array' THEN
                wrong := format('job %s returned no list, and this node runs one job for each item', edge.upstream);
            ELSIF json_array_length(edge.result) > 100000 THEN
                wrong := format('job %s returned %s items, more than 100000', edge.upstream, json_array_length(edge.result));
            END IF;
        ELSE
            body := jobherd.with_argument(body, edge.argument, edge.result::text);
        END IF;
    END LOOP;
    IF octet_length(body) > 10000000 THEN
        wrong := format('the results that it gets have %s bytes, more than 10000000: return keys of stored data instead', octet_length(body));
    ELSIF json_typeof(job.payload) <> 'object' THEN
        wrong := 'its payload is not an object, so it cannot get results';
    END IF;
    IF wrong IS NULL AND spread IS NOT NULL AND octet_length(body)::bigint * json_array_length(list) > 100000000 THEN
        wrong := format('its %s jobs would get the same %s bytes each, more than 100000000 together: return keys of stored data instead',
                        json_array_length(list), octet_length(body));
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM jobherd.fail_blocked(blocked_id, wrong);
        RETURN 1;
    ELSIF spread IS NULL THEN
        UPDATE jobherd.blocked b SET payload = body::json WHERE b.id = blocked_id;
        RETURN 0;
    END IF;
    items := array(SELECT jobherd.with_argument(body, spread, i.value::text) FROM json_array_elements(list) AS i);
    flow := (job.extras).flow;
    DELETE FROM jobherd.blocked b WHERE b.id = blocked_id;
    INSERT INTO jobherd.flows (id, name, outer_flow, pending, policy, keeps, parent_id, tenant, mapped)
    SELECT blocked_id, f.name || '/' || (job.extras).node, f.id, cardinality(items), f.policy, true, f.parent_id, f.tenant, to_json(job)
      FROM jobherd.flows f WHERE f.id = flow;
    job.extras.flow := blocked_id;
    IF items = '{}' THEN
        INSERT INTO jobherd.ends (flow, delta) VALUES (blocked_id, 0);
    ELSE
        PERFORM jobherd.insert_node(
            jsonb_populate_record(NULL::jobherd.ready, jsonb_build_object(
                'run_at', greatest(job.run_at, now()), 'expires_at', job.expires_at, 'timeout', job.timeout, 'priority', job.priority,
                'max_attempts', job.max_attempts, 'queue', job.queue, 'kind', job.kind, 'extras', job.extras)),
            items, 0, '[]', NULL, false);
    END IF;
    RETURN 1;
END $$;
