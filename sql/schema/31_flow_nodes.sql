-- The nodes of a flow: what is checked, and how their jobs and edges are stored. Each error of a node names the node and
-- the field.

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

-- Returns the extras of a member with its partition and its place in its node.
CREATE FUNCTION jobherd.with_item(job jobherd.extras, partition text, item integer)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    job.partition := partition;
    job.item := item;
    RETURN job;
END $$;

-- Inserts the jobs of a node and its edges, and returns the ids of the jobs in the order of the payloads. A job without an
-- edge is ready or scheduled. common: what all of them share. edges: [{"job", "wanted", "argument", "spread"}].
CREATE FUNCTION jobherd.insert_node(
    common jobherd.ready, payloads text[], first_item integer, edges jsonb, of_flow bigint, confined boolean
)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    divided text[];
    waits   CONSTANT boolean := edges <> '[]';
    later   CONSTANT boolean := common.run_at > now();
    part    CONSTANT text := CASE WHEN waits THEN 'blocked' WHEN later THEN 'scheduled' ELSE 'ready' END;
    ids     bigint[];
BEGIN
    SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = common.kind;
    EXECUTE format(
        'WITH new AS MATERIALIZED (
             SELECT p.place, nextval(''jobherd.job_ids'') AS id, p.payload::json AS payload
               FROM unnest($2) WITH ORDINALITY AS p (payload, place)
         ), named AS MATERIALIZED (
             SELECT n.*, jobherd.partition_of(($1.extras).partition, $4, n.payload, ($1.extras).tenant, $5) AS name FROM new n
         ), put AS (
             INSERT INTO jobherd.%I (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
             SELECT n.id, $1.run_at, $1.expires_at, $1.timeout, $1.priority, $1.max_attempts, $1.queue, $1.kind, n.payload,
                    jobherd.with_item($1.extras, n.name, CASE WHEN $3 IS NOT NULL THEN $3 + n.place::integer - 1 END),
                    jobherd.lane_of(n.name)
               FROM named n ORDER BY n.place
         )
         SELECT array_agg(id ORDER BY place) FROM new', part)
      INTO ids USING common, payloads, first_item, divided, confined;
    IF waits THEN
        INSERT INTO jobherd.edges (downstream, upstream, wanted, flow, argument, spread, marked)
        SELECT i, e.job, coalesce(e.wanted, 'completed'), of_flow, e.argument, coalesce(e.spread, false), coalesce(e.marked, false)
          FROM unnest(ids) AS i CROSS JOIN jsonb_to_recordset(edges) AS e (job bigint, wanted text, argument text, spread boolean, marked boolean);
    END IF;
    RETURN ids;
END $$;

-- Adds the nodes of a flow, in their order. Returns what was added: {"nodes": {name: id}, "added": members}. known: the ids of
-- nodes that are there. Each node: {"node", "kind", "payload", its "text" or "payloads" (texts), "item", "options", "after" (names and
-- ids), "when", "bind" ({parameter: name}), "map" (the parameter that gets an item), "on"}. `on` (success, failure, done): the
-- node waits for the flow itself and is not a member.
CREATE FUNCTION jobherd.add_nodes(of_flow bigint, nodes jsonb, known jsonb, base jsonb, confined boolean)
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
                PERFORM jobherd.check_upstreams(ARRAY[up::bigint], chosen ->> 'wanted', CASE WHEN confined THEN jobherd.own_tenants() END);
            ELSE
                PERFORM jobherd.reject_node(name, format('waits for %s, which is not a node before it, and not the id of a job', left(up::text, 120)),
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
