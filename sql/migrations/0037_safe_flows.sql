-- Flows of roles that are limited: what they may enqueue, and what can delay maintenance processes.
--
-- Each error of a node names the node and the field. A tenant's role cannot put jobs into the flow of another tenant,
-- nor learn that it exists. Open transactions, large results and errors in one flow do not stop the resolution of others.

-- The end of a job counts in the flow that its extras name, and its result is passed on. So only the functions of flows, which
-- run as the owner, write these attributes. For roles that work or manage, row security allows everything.
ALTER POLICY own_tenant ON jobherd.ready
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)
                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);
ALTER POLICY own_tenant ON jobherd.scheduled
    WITH CHECK ((extras).tenant = ANY ((SELECT jobherd.own_tenants())::text[])
                AND (extras).partition = (extras).tenant AND lane = jobherd.lane_of((extras).tenant)
                AND num_nonnulls((extras).flow, (extras).node, (extras).item) = 0);

-- Raises an error that names a node of a flow and what is wrong with it.
CREATE FUNCTION jobherd.reject_node(node text, what text, hint text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'jobherd.start_flow: node % %', quote_literal(left(node, 120)), what
        USING ERRCODE = 'invalid_parameter_value', HINT = coalesce(hint, 'See docs/how-to/write/workflows.md.');
END $$;

-- Checks the fields of a node, without its options. Raises an error that names the node and the field.
CREATE FUNCTION jobherd.check_node(node jsonb)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    known CONSTANT jsonb := '{"node": "string", "kind": "string", "text": "string", "payloads": "array", "item": "number", "options": "object",
                              "after": "array string number", "when": "string", "bind": "object", "map": "string", "on": "string",
                              "results": "string", "payload": "object array string number boolean"}';
    name  CONSTANT text := node ->> 'node';
    field record;
BEGIN
    IF jsonb_typeof(node) IS DISTINCT FROM 'object' OR name IS NULL OR length(name) NOT BETWEEN 1 AND 100 OR name ~ '[[:cntrl:]]'
       OR jsonb_typeof(node -> 'node') <> 'string' THEN
        RAISE EXCEPTION 'jobherd.start_flow: each node needs "node", a name of at most 100 characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR field IN SELECT f.key, f.value, jsonb_typeof(f.value) AS is FROM jsonb_each(node) AS f ORDER BY f.key LOOP
        IF NOT known ? field.key THEN
            PERFORM jobherd.reject_node(name, format('has the unknown field "%s"', left(field.key, 120)),
                                        'Known fields: ' || (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(known) AS k) || '.');
        ELSIF field.is <> 'null' AND field.is <> ALL (string_to_array(known ->> field.key, ' ')) THEN
            PERFORM jobherd.reject_node(name, format('has a bad field "%s" %s: it must be %s, not %s', field.key, left(field.value::text, 120),
                                                     replace(known ->> field.key, ' ', ' or '), field.is));
        END IF;
    END LOOP;
    IF coalesce(node ->> 'kind', '') !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(node ->> 'kind') > 100 THEN
        PERFORM jobherd.reject_node(name, 'has no kind like "mail:receipt"');
    ELSIF node ->> 'when' <> ALL ('{completed,failed,ended}') THEN
        PERFORM jobherd.reject_node(name, format('has a wrong "when": it must be completed, failed or ended, not %s', left((node -> 'when')::text, 120)));
    ELSIF node ->> 'on' <> ALL ('{success,failure,done}') THEN
        PERFORM jobherd.reject_node(name, format('has a wrong "on": it must be success, failure or done, not %s', left((node -> 'on')::text, 120)));
    ELSIF node ->> 'map' IS NOT NULL AND (node ? 'on' OR NOT coalesce(node -> 'bind', '{}') ? (node ->> 'map')) THEN
        PERFORM jobherd.reject_node(name, '"map" must name a parameter of "bind", and excludes "on"');
    ELSIF jsonb_typeof(node -> 'item') = 'number' AND (node -> 'item')::numeric NOT BETWEEN 0 AND 1000000 THEN
        PERFORM jobherd.reject_node(name, format('has a bad field "item" %s: it must be from 0 to 1000000', left((node -> 'item')::text, 120)));
    ELSIF jsonb_typeof(node -> 'payload') NOT IN ('object', 'null') AND node ? 'bind' THEN
        PERFORM jobherd.reject_node(name, 'gets results, so its "payload" must be an object');
    END IF;
END $$;

-- Returns the jobs of a node, with its options and checked payloads, as one row of `ready`. Raises an error that names the
-- node and the option. Writes nothing: the handler of errors would cost a transaction id for each node.
CREATE FUNCTION jobherd.node_job(node jsonb, texts text[], base jsonb)
RETURNS jobherd.ready
LANGUAGE plpgsql
AS $$
DECLARE
    known  CONSTANT text[] := '{queue,priority,delay,run_at,max_attempts,timeout,expires_at,partition,webhook}';
    chosen CONSTANT jsonb := coalesce(nullif(node -> 'options', 'null'), '{}');
    job    jobherd.ready;
    name   text;
    body   text;
    wrong  text;
BEGIN
    SELECT key INTO name FROM jsonb_object_keys(chosen) AS key WHERE key <> ALL (known) ORDER BY key LIMIT 1;
    IF name IS NOT NULL THEN
        PERFORM jobherd.reject_node(node ->> 'node', format('has the unknown option "%s"', left(name, 120)),
                                    'Known options: ' || array_to_string(known, ', ') || '.');
    ELSIF chosen ? 'delay' AND chosen ? 'run_at' THEN
        PERFORM jobherd.reject_node(node ->> 'node', 'has the options "delay" and "run_at", which exclude each other');
    END IF;
    BEGIN
        name := 'queue';
        job.kind := node ->> 'kind';
        SELECT coalesce(chosen ->> 'queue', k.queue, 'default'), coalesce(k.priority, 0) INTO job.queue, job.priority
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = job.kind;
        IF job.queue !~ '^[a-z0-9_][a-z0-9_.-]*$' OR length(job.queue) > 63 THEN RAISE EXCEPTION 'not a queue name'; END IF;
        name := 'priority';
        job.priority := coalesce((chosen ->> 'priority')::smallint, job.priority);
        name := 'delay';
        job.run_at := coalesce(now() + make_interval(secs => jobherd.seconds_of(chosen ->> 'delay')), now());
        name := 'run_at';
        job.run_at := coalesce((chosen ->> 'run_at')::timestamptz, job.run_at);
        IF NOT isfinite(job.run_at) OR job.run_at <= '1900-01-01 00:00Z' OR job.run_at >= '9000-01-01 00:00Z' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'max_attempts';
        job.max_attempts := (chosen ->> 'max_attempts')::smallint;
        IF job.max_attempts < 1 THEN RAISE EXCEPTION 'must be at least 1'; END IF;
        name := 'timeout';
        job.timeout := jobherd.seconds_of(chosen ->> 'timeout');
        IF job.timeout <= 0 THEN RAISE EXCEPTION 'must be more than 0 seconds'; END IF;
        name := 'expires_at';
        job.expires_at := (chosen ->> 'expires_at')::timestamptz;
        IF NOT isfinite(job.expires_at) OR job.expires_at <= '1900-01-01 00:00Z' OR job.expires_at >= '9000-01-01 00:00Z' THEN
            RAISE EXCEPTION 'out of range';
        END IF;
        name := 'webhook';
        job.extras := jobherd.extras_of(base ->> 'tenant', jobherd.check_webhook(chosen ->> 'webhook'), NULL, (base ->> 'parent_id')::bigint,
                                        jobherd.check_traceparent(base ->> 'traceparent'));
        name := 'partition';
        IF length(chosen ->> 'partition') > 200 OR chosen ->> 'partition' ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION 'not a text of at most 200 printable characters';
        END IF;
        job.extras.partition := chosen ->> 'partition';
    EXCEPTION WHEN data_exception OR raise_exception THEN
        wrong := format('has a bad option "%s" %s: %s', name, coalesce(left((chosen -> name)::text, 120), ''), SQLERRM);
    END;
    IF wrong IS NULL THEN
        BEGIN
            FOREACH body IN ARRAY texts LOOP
                IF body IS NULL OR json_typeof(body::json) IS NULL THEN
                    wrong := 'has a payload that is null';
                ELSIF octet_length(body) > 1000000 THEN
                    wrong := format('has a payload of %s bytes, more than 1000000', octet_length(body));
                ELSIF octet_length(body) > 200 AND (body ~ '[0-9]{250}[0-9]{250}[0-9]{250}[0-9]{250}[0-9]'
                                                    OR octet_length(body) - octet_length(translate(body, '[{', '')) > 100) THEN
                    wrong := 'has a payload ' || left(jobherd.hostile_path(replace(body, '\u0000', '\u0001')::jsonb), 500);
                END IF;
                EXIT WHEN wrong IS NOT NULL;
            END LOOP;
        EXCEPTION WHEN data_exception OR statement_too_complex THEN
            wrong := 'has a payload that is not JSON: ' || SQLERRM;
        END;
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM jobherd.reject_node(node ->> 'node', wrong);
    END IF;
    RETURN job;
END $$;

-- Adds the nodes of a flow, in their order. Returns what was added: {"nodes": {name: id}, "added": members}. known: the ids of
-- nodes that are there. Each node: {"node", "kind", "payload", its "text" or "payloads" (texts), "item", "options", "after" (names and
-- ids), "when", "bind" ({parameter: name}), "map" (the parameter that gets an item), "on"}. `on` (success, failure, done): the
-- node waits for the flow itself and is not a member.
CREATE OR REPLACE FUNCTION jobherd.add_nodes(of_flow bigint, nodes jsonb, known jsonb, base jsonb, confined boolean)
RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
    node    jsonb;
    name    text;
    chosen  jsonb;
    common  jobherd.ready;
    texts   text[];
    edges   jsonb;
    ids     bigint[];
    added   bigint := 0;
    tied    bigint := 0;
    named   integer := 0;
    up      jsonb;
    there   CONSTANT jsonb := known;
BEGIN
    FOR node IN SELECT n FROM jsonb_array_elements(nodes) AS n LOOP
        PERFORM jobherd.check_node(node);
        name := node ->> 'node';
        IF known ? name AND NOT node ? 'item' THEN
            RAISE EXCEPTION 'jobherd.start_flow: two nodes are called %', quote_literal(name)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        texts := CASE WHEN node ? 'payloads' THEN array(SELECT t FROM jsonb_array_elements_text(node -> 'payloads') AS t)
                      ELSE ARRAY[coalesce(node ->> 'text', (node -> 'payload')::text, '{}')] END;
        common := jobherd.node_job(node, texts, base);
        edges := '[]';
        FOR chosen IN
            SELECT jsonb_build_object('up', a.up, 'wanted', coalesce(node ->> 'when', 'completed'))
              FROM jsonb_array_elements(CASE WHEN jsonb_typeof(node -> 'after') = 'array' THEN node -> 'after'
                                             WHEN node ->> 'after' IS NOT NULL THEN jsonb_build_array(node -> 'after') ELSE '[]' END) AS a (up)
            UNION ALL
            SELECT jsonb_build_object('up', b.value, 'wanted', coalesce(node ->> 'when', 'completed'), 'argument', b.key,
                                      'spread', b.key IS NOT DISTINCT FROM node ->> 'map')
              FROM jsonb_each(coalesce(nullif(node -> 'bind', 'null'), '{}')) AS b
        LOOP
            up := chosen -> 'up';
            IF jsonb_typeof(up) = 'string' AND known ? (up #>> '{}') THEN
                chosen := jsonb_set(chosen, '{up}', known -> (up #>> '{}')) || jsonb_build_object('marked', NOT there ? (up #>> '{}'));
            ELSIF jsonb_typeof(up) = 'number' AND up::numeric BETWEEN 1 AND 9223372036854775807 AND up::numeric = trunc(up::numeric)
                  AND up::numeric <> of_flow THEN
                PERFORM jobherd.check_upstreams(ARRAY[up::bigint], chosen ->> 'wanted', confined);
            ELSE
                PERFORM jobherd.reject_node(name, format('waits for %s, which is no node before it, and not the id of a job', left(up::text, 120)),
                                            'Name nodes after those that they wait for.');
            END IF;
            edges := edges || jsonb_build_array(chosen - 'up' || jsonb_build_object('job', chosen -> 'up'));
            EXIT WHEN jsonb_array_length(edges) > 1000;
        END LOOP;
        IF node ->> 'on' IS NOT NULL THEN
            edges := edges || jsonb_build_object('job', of_flow, 'wanted', CASE node ->> 'on' WHEN 'success' THEN 'completed'
                                                 WHEN 'failure' THEN 'failed' ELSE 'ended' END, 'argument', node ->> 'results', 'marked', true);
        END IF;
        -- two edges to one job are one: the one with the argument
        SELECT coalesce(jsonb_agg(e), '[]') INTO edges
          FROM (SELECT DISTINCT ON ((e -> 'job')::bigint) e FROM jsonb_array_elements(edges) AS e
                 ORDER BY (e -> 'job')::bigint, (e ->> 'argument') IS NULL) AS one;
        IF node ->> 'on' IS NULL THEN
            common.extras.flow := of_flow;
            common.extras.node := name;
            added := added + cardinality(texts);
        END IF;
        tied := tied + cardinality(texts)::bigint * jsonb_array_length(edges);
        named := named + CASE WHEN node ? 'item' THEN 0 ELSE 1 END;
        IF added > 100000 OR tied > 1000000 OR named > 10000 OR jsonb_array_length(edges) > 1000 THEN
            RAISE EXCEPTION 'jobherd.start_flow: the flow is too large at node %', quote_literal(name)
                USING ERRCODE = 'program_limit_exceeded',
                    HINT = 'One call adds at most 100000 jobs, 10000 nodes, 1000000 edges, and 1000 edges of a node.';
        END IF;
        ids := jobherd.insert_node(common, texts, CASE WHEN node ? 'item' THEN (node ->> 'item')::integer WHEN node ? 'payloads' THEN 0 END,
                                   edges, of_flow, confined);
        IF NOT node ? 'item' AND cardinality(texts) = 1 THEN
            known := known || jsonb_build_object(name, ids[1]);
        END IF;
    END LOOP;
    RETURN jsonb_build_object('nodes', known, 'added', added);
END $$;

CREATE OR REPLACE FUNCTION jobherd.start_flow(name text, nodes jsonb, options jsonb DEFAULT '{}')
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    made     jobherd.flows;
    done     jsonb;
    confined boolean := false;
    what     text;
    wrong    text;
    given    CONSTANT jsonb := coalesce(options, '{}');
    known    CONSTANT text[] := '{tenant,parent_id,traceparent,policy,deadline,keeps}';
BEGIN
    wrong := CASE WHEN jsonb_typeof(given) <> 'object' THEN format('options must be a JSON object, not a %s', jsonb_typeof(given))
                  WHEN jsonb_typeof(nodes) IS DISTINCT FROM 'array' THEN 'nodes must be a JSON array'
                  WHEN coalesce(length(start_flow.name), 0) NOT BETWEEN 1 AND 200 OR start_flow.name ~ '[[:cntrl:]]'
                  THEN 'name must have 1 to 200 printable characters'
                  WHEN given ->> 'policy' <> ALL ('{cancel,continue}')
                  THEN format('option "policy" must be cancel or continue, not %s', left((given -> 'policy')::text, 120)) END;
    IF wrong IS NULL THEN
        SELECT format('unknown option "%s"', left(k, 120)) INTO wrong FROM jsonb_object_keys(given) AS k WHERE k <> ALL (known) ORDER BY k LIMIT 1;
    END IF;
    IF wrong IS NULL THEN
        BEGIN
            what := 'tenant';
            made.tenant := jobherd.check_tenant(given ->> 'tenant');
            what := 'parent_id';
            made.parent_id := (given ->> 'parent_id')::bigint;
            what := 'traceparent';
            PERFORM jobherd.check_traceparent(given ->> 'traceparent');
            what := 'keeps';
            made.keeps := coalesce((given ->> 'keeps')::boolean, false) OR jsonb_path_exists(nodes, '$[*].results');
            what := 'deadline';
            made.deadline := now() + make_interval(secs => jobherd.seconds_of(given ->> 'deadline'));
        EXCEPTION WHEN data_exception OR raise_exception THEN
            wrong := format('option "%s" has a bad value %s: %s', what, left((given -> what)::text, 120), SQLERRM);
        END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.start_flow: %', wrong
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Known options: ' || array_to_string(known, ', ') || '.';
    END IF;
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        confined := jobherd.is_tenant();
        IF confined AND made.tenant IS NULL AND cardinality(jobherd.own_tenants()) = 1 THEN
            made.tenant := (jobherd.own_tenants())[1];
        END IF;
        PERFORM jobherd.check_producer('', made.tenant);  -- also for a flow without jobs
        FOR what IN SELECT DISTINCT n ->> 'kind' FROM jsonb_array_elements(nodes) AS n LOOP
            PERFORM jobherd.check_producer(what, made.tenant);
        END LOOP;
    END IF;
    made.id := nextval('jobherd.job_ids');
    done := jobherd.add_nodes(made.id, nodes, '{}', given || jsonb_build_object('tenant', made.tenant), confined);
    INSERT INTO jobherd.flows (id, name, pending, policy, keeps, parent_id, tenant, deadline, nodes)
    VALUES (made.id, start_flow.name, (done -> 'added')::bigint, coalesce(given ->> 'policy', 'cancel'), made.keeps, made.parent_id, made.tenant,
            made.deadline, jobherd.sketch(nodes, done -> 'nodes'));
    IF (done -> 'added')::bigint = 0 THEN
        INSERT INTO jobherd.ends (flow, delta) VALUES (made.id, 0);  -- an empty flow is over at once
    END IF;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN made.id;
END $$;

CREATE OR REPLACE FUNCTION jobherd.extend_flow(flow_id bigint, nodes jsonb)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    old      jobherd.flows;
    done     jsonb;
    what     text;
    confined boolean := false;
BEGIN
    IF jsonb_typeof(nodes) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'jobherd.extend_flow: nodes must be a JSON array' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id;
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        confined := jobherd.is_tenant();
        IF confined AND (old.tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN
            old := NULL;  -- the flow of another tenant counts as missing
        ELSE
            PERFORM jobherd.check_producer('', old.tenant);
            FOR what IN SELECT DISTINCT n ->> 'kind' FROM jsonb_array_elements(nodes) AS n LOOP
                PERFORM jobherd.check_producer(what, old.tenant);
            END LOOP;
        END IF;
    END IF;
    IF old.id IS NULL OR old.state <> 'open' THEN
        RAISE EXCEPTION 'jobherd.extend_flow: flow % %', flow_id, CASE WHEN old.id IS NULL THEN 'does not exist' ELSE 'has ended' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only a running member of a flow can add members.';
    END IF;
    -- An item has a number, so that a name can be used again.
    done := jobherd.add_nodes(flow_id, nodes, coalesce((SELECT jsonb_object_agg(n ->> 'node', n -> 'job') FROM jsonb_array_elements(old.nodes) AS n WHERE n ? 'job'), '{}'),
                              jsonb_build_object('tenant', old.tenant, 'parent_id', old.parent_id), confined);
    INSERT INTO jobherd.ends (flow, delta) VALUES (flow_id, (done -> 'added')::integer);
    RETURN (done -> 'added')::bigint;
END $$;

-- Cancels up to `most` members of a flow: those that wait end now, running ones are interrupted, inner flows are stopped.
-- Rows that another session has locked are left for the next time. Returns how many have ended.
CREATE OR REPLACE FUNCTION jobherd.stop_members(of_flow bigint, most integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    why    CONSTANT text := (SELECT f.stopping FROM jobherd.flows f WHERE f.id = of_flow);
    part   text;
    held   bigint[];
    gone   integer;
    total  integer := 0;
BEGIN
    UPDATE jobherd.flows f SET stopping = why
      FROM (SELECT i.id FROM jobherd.flows i WHERE i.outer_flow = of_flow AND i.state = 'open' AND i.stopping IS NULL
             ORDER BY i.id FOR UPDATE SKIP LOCKED) AS free
     WHERE f.id = free.id;
    INSERT INTO jobherd.cancels (job)
    SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE (j.extras).flow = of_flow AND NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM jobherd.notify('jobherd_jobs', '@cancel');
    END IF;
    FOREACH part IN ARRAY '{blocked,scheduled,parked,ready}'::text[] LOOP
        EXECUTE format('SELECT array(SELECT id FROM jobherd.%I WHERE (extras).flow = $1 AND (extras).flow > 0 ORDER BY id LIMIT $2'
                       ' FOR UPDATE SKIP LOCKED)', part) INTO held USING of_flow, most;
        CONTINUE WHEN held = '{}';
        IF part = 'blocked' THEN
            -- An edge of a canceled job is not passed on. A retry of the flow finds out what became of its upstream job.
            UPDATE jobherd.edges e SET state = 'unknown', marked = true WHERE e.downstream = ANY (held) AND e.state IS NULL;
        END IF;
        EXECUTE format(
            'WITH gone AS (
                 DELETE FROM jobherd.%I t WHERE t.id = ANY ($1) RETURNING t.*
             )
             INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                          state, queue, kind, payload, extras, timeout, error_code, error)
             SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE ''UTC'')::date + coalesce(k.keep_failed, 30),
                    g.priority, g.attempts, g.max_attempts, g.crashes, ''cancelled'', g.queue, g.kind, g.payload, g.extras, g.timeout,
                    ''FLOW_CANCELLED'', $2
               FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind', part) USING held, why;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END $$;

-- Resolves flows that have rows in `ends`, and flows that are being stopped or are past their deadline. Returns the number of rows.
--
-- Fairness: it begins at a random flow and ends after 0.2 s, so one user's many flows delay neither due jobs nor, for long,
-- the flows of others. A flow that raises an error is left, and the others are resolved.
CREATE OR REPLACE FUNCTION jobherd.resolve_flows(most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    until    CONSTANT timestamptz := clock_timestamp() + interval '0.2 s';
    alone    boolean := false;  -- each flow in a subtransaction
    place    bigint;
    wrapped  boolean;
    begins   bigint;
    tried    integer := 0;
    found_one bigint;
    part     text;
    total    bigint := 0;
BEGIN
    -- Race: a flow that a user's open transaction has locked is left for the next look. Such a transaction must not delay maintenance.
    UPDATE jobherd.flows f SET stopping = 'the deadline of the flow has passed'
      FROM (SELECT d.id FROM jobherd.flows d WHERE d.deadline < now() AND d.state = 'open' AND d.stopping IS NULL
             ORDER BY d.id LIMIT most FOR UPDATE SKIP LOCKED) AS late
     WHERE f.id = late.id;
    LOOP
        BEGIN
            FOREACH part IN ARRAY '{ends,stopping}'::text[] LOOP
                IF part = 'ends' THEN
                    SELECT min(e.flow) + floor(random() * (max(e.flow) - min(e.flow) + 1)) INTO begins FROM jobherd.ends e WHERE e.flow > 0;
                ELSE
                    SELECT min(f.id) + floor(random() * (max(f.id) - min(f.id) + 1)) INTO begins FROM jobherd.flows f WHERE f.stopping IS NOT NULL;
                END IF;
                CONTINUE WHEN begins IS NULL;
                place := begins - 1;
                wrapped := false;
                LOOP
                    IF part = 'ends' THEN
                        SELECT e.flow INTO found_one FROM jobherd.ends e WHERE e.flow > place ORDER BY e.flow LIMIT 1;
                    ELSE
                        SELECT f.id INTO found_one FROM jobherd.flows f WHERE f.id > place AND f.stopping IS NOT NULL AND f.state = 'open' ORDER BY f.id LIMIT 1;
                    END IF;
                    IF found_one IS NULL AND NOT wrapped THEN
                        wrapped := true;
                        place := 0;
                        CONTINUE;
                    END IF;
                    EXIT WHEN found_one IS NULL OR wrapped AND found_one >= begins;
                    place := found_one;
                    IF alone THEN
                        BEGIN
                            total := total + coalesce(jobherd.resolve_flow(place, most), 0);
                        EXCEPTION WHEN OTHERS THEN
                            RAISE WARNING 'jobherd: flow % cannot be resolved: %', place, SQLERRM;
                        END;
                        tried := tried + 1;
                        EXIT WHEN tried >= 50;  -- Cost: more subtransactions slow down the snapshots of all sessions
                    ELSE
                        total := total + coalesce(jobherd.resolve_flow(place, most), 0);
                    END IF;
                    EXIT WHEN clock_timestamp() > until;
                END LOOP;
            END LOOP;
            RETURN total;
        EXCEPTION WHEN OTHERS THEN
            IF alone THEN
                RAISE;
            END IF;
            total := 0;
            alone := true;
        END;
    END LOOP;
END $$;

-- Passes on up to `most` ends of jobs that belong to no flow. An end stays until none of its edges is open.
CREATE OR REPLACE FUNCTION jobherd.resolve_ends(most integer, OUT ended bigint, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    rows   bigint[];
    first  bigint := 0;
    jobs   bigint[];
    states text[];
BEGIN
    -- An end stays while a session holds the jobs that wait for it. With `most` of them at the front, all others would wait too.
    IF random() < 0.5 THEN
        SELECT min(e.id) + floor(random() * (max(e.id) - min(e.id) + 1)) INTO first FROM jobherd.ends e WHERE e.flow = 0;
    END IF;
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.state) INTO rows, jobs, states
      FROM (SELECT e.id, e.job, e.state FROM jobherd.ends e WHERE e.flow = 0 AND e.id >= first ORDER BY e.id LIMIT most FOR UPDATE SKIP LOCKED) AS f;
    ended := 0;
    IF rows IS NULL THEN
        RETURN;
    END IF;
    SELECT p.released, p.cancelled INTO released, cancelled FROM jobherd.pass_on(jobs, states, most) AS p;
    DELETE FROM jobherd.ends e
     WHERE e.flow = 0 AND e.id = ANY (rows)
       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream
                        WHERE g.upstream = e.job AND g.state IS NULL);
    GET DIAGNOSTICS ended = ROW_COUNT;
END $$;

-- Returns the result of a job, or of all members of a flow as a list in the order of their items. Null: those are too large.
CREATE OR REPLACE FUNCTION jobherd.result_of(job bigint)
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
CREATE OR REPLACE FUNCTION jobherd.bind_results(blocked_id bigint)
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
    INSERT INTO jobherd.flows (id, name, outer_flow, pending, policy, keeps, parent_id, tenant)
    SELECT blocked_id, f.name || '/' || (job.extras).node, f.id, cardinality(items), f.policy, true, f.parent_id, f.tenant
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

-- Writes the ends of jobs into the edges of up to `most` blocked jobs, and releases or cancels those. Jobs that another
-- session has locked are left. Returns how many were released and canceled.
--
-- Race: with several upstream jobs, the one that ends last releases. Two maintenance processes may each have one of
-- them. So the row of the blocked job is locked first, and the statement that decides begins after that.
CREATE OR REPLACE FUNCTION jobherd.pass_on(ended bigint[], states text[], most integer, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    held bigint[];
    one  bigint;
    bound bigint[];
BEGIN
    released := 0;
    cancelled := 0;
    held := array(SELECT b.id FROM jobherd.blocked b
                   WHERE b.id IN (SELECT e.downstream FROM jobherd.edges e WHERE e.upstream = ANY (ended) AND e.state IS NULL)
                   ORDER BY b.id LIMIT most FOR UPDATE SKIP LOCKED);
    IF held = '{}' THEN
        RETURN;
    END IF;
    UPDATE jobherd.edges e
       SET state = s.state, marked = true,
           result = CASE WHEN e.argument IS NOT NULL THEN jobherd.result_of(s.job) END
      FROM unnest(ended, states) AS s (job, state)
     WHERE e.upstream = s.job AND e.downstream = ANY (held) AND e.state IS NULL;
    bound := array(SELECT e.downstream FROM jobherd.edges e WHERE e.downstream = ANY (held)
                    GROUP BY e.downstream
                   HAVING bool_or(e.argument IS NOT NULL) AND NOT bool_or(e.state IS NULL OR NOT jobherd.is_wanted(e.wanted, e.state)));
    IF bound <> '{}' THEN
        BEGIN
            SELECT coalesce(sum(jobherd.bind_results(b)), 0) INTO released FROM unnest(bound) AS b;
        EXCEPTION WHEN OTHERS THEN
            -- A result that cannot be passed on must not stop maintenance: only the job fails that was to get it.
            released := 0;
            FOREACH one IN ARRAY bound LOOP
                BEGIN
                    released := released + jobherd.bind_results(one);
                EXCEPTION WHEN OTHERS THEN
                    PERFORM jobherd.fail_blocked(one, 'the results that it gets cannot be stored: ' || left(SQLERRM, 300));
                    released := released + 1;
                END;
            END LOOP;
        END;
    END IF;
    WITH fate AS MATERIALIZED (
        SELECT e.downstream, bool_or(e.state IS NULL) AS open,
               (array_agg(e.upstream ORDER BY e.upstream) FILTER (WHERE NOT jobherd.is_wanted(e.wanted, e.state)))[1] AS bad
          FROM jobherd.edges e WHERE e.downstream = ANY (held) GROUP BY e.downstream
    ), gone AS (
        DELETE FROM jobherd.blocked b USING fate f
         WHERE b.id = f.downstream AND (f.bad IS NOT NULL OR NOT f.open)
        RETURNING b AS job, f.bad
    ), untied AS (
        DELETE FROM jobherd.edges e USING fate f
         WHERE e.downstream = f.downstream AND (f.bad IS NOT NULL OR NOT f.open) AND e.flow IS NULL
    ), unknown AS (
        UPDATE jobherd.edges e SET state = 'unknown', marked = true FROM fate f
         WHERE e.downstream = f.downstream AND f.bad IS NOT NULL AND e.state IS NULL AND e.flow IS NOT NULL
    ), past AS (
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT (g.job).id, (g.job).created_at, (g.job).run_at, clock_timestamp(),
               (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), (g.job).priority, (g.job).attempts,
               (g.job).max_attempts, (g.job).crashes, 'cancelled', (g.job).queue, (g.job).kind, (g.job).payload,
               (g.job).extras, (g.job).timeout, CASE u.wanted WHEN 'failed' THEN 'UPSTREAM_COMPLETED' ELSE 'UPSTREAM_FAILED' END,
               format('it waited for job %s %s, which %s', u.upstream,
                      CASE u.wanted WHEN 'failed' THEN 'to fail' ELSE 'to complete' END,
                      CASE u.state WHEN 'cancelled' THEN 'was canceled' WHEN 'skipped' THEN 'was not needed' ELSE u.state END)
          FROM gone g JOIN jobherd.edges u ON u.downstream = (g.job).id AND u.upstream = g.bad
               LEFT JOIN jobherd.kinds k ON k.name = (g.job).kind
        RETURNING id
    ), free AS MATERIALIZED (
        SELECT t.later,
               CASE WHEN t.later THEN g.job
                    ELSE jsonb_populate_record(g.job, jsonb_build_object(  -- see the index ready_came_back
                             'run_at', greatest(t.at, (g.job).created_at + interval '1 microsecond'))) END AS job
          FROM gone g CROSS JOIN LATERAL (SELECT c.at, (g.job).run_at > c.at AS later FROM (SELECT clock_timestamp() AS at) AS c OFFSET 0) AS t
         WHERE g.bad IS NULL
    ), later AS (
        INSERT INTO jobherd.scheduled SELECT (f.job).* FROM free f WHERE f.later
        RETURNING id
    ), now AS (
        INSERT INTO jobherd.ready SELECT (f.job).* FROM free f WHERE NOT f.later
        RETURNING id
    ), told AS MATERIALIZED (
        SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM past HAVING count(*) > 0
    )
    SELECT released + (SELECT count(*) FROM later) + (SELECT count(*) FROM now), (SELECT count(*) FROM past) INTO released, cancelled
      FROM (SELECT) AS nothing LEFT JOIN told ON true;
END $$;

CREATE OR REPLACE FUNCTION jobherd.cancel_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
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

-- Runs the failed and canceled members of a flow again, and lets wait again what waits for them. Completed members stay.
CREATE OR REPLACE FUNCTION jobherd.retry_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
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
