-- Flows: jobs with one common end. Chains, groups and graphs are flows.
--
-- The members of a flow name it in their extras. `pending` counts those that had not ended when a maintenance process
-- looked last. No end of a member writes it: each adds a row to `ends`, and so does each transaction that adds members.
-- jobherd.resolve_flow() locks the row of the flow, takes away all rows of `ends` that one statement sees, and adds them up.
-- At 0 the flow is over. tests/models/resolve.pml proves that.
--
-- A flow has an id of the same sequence as jobs. Its end is passed on like that of a job, so a job can wait for a flow: the
-- jobs that run after a group do. A node with a job for each item of a list is a flow whose `outer_flow` is the graph.

ALTER TYPE jobherd.extras ADD ATTRIBUTE node text;      -- name of the member in its flow
ALTER TYPE jobherd.extras ADD ATTRIBUTE item integer;   -- place in its node, if that has several jobs; from 0

CREATE TABLE jobherd.flows (
    id         bigint PRIMARY KEY DEFAULT nextval('jobherd.job_ids'),
    name       text COLLATE "C" NOT NULL,
    outer_flow bigint,                                  -- the flow of which it is a member
    pending    bigint  NOT NULL DEFAULT 0,
    completed  bigint  NOT NULL DEFAULT 0,
    failed     bigint  NOT NULL DEFAULT 0,              -- or expired
    cancelled  bigint  NOT NULL DEFAULT 0,
    state      text COLLATE "C" NOT NULL DEFAULT 'open',
    policy     text COLLATE "C" NOT NULL DEFAULT 'cancel',
    keeps      boolean NOT NULL DEFAULT false,          -- results of its members are wanted
    stopping   text,                                    -- its members are being canceled, for this reason
    parent_id  bigint,                                  -- the job that started it
    tenant     text,
    deadline   timestamptz,
    nodes      jsonb   NOT NULL DEFAULT '[]',           -- names, and what each waits for: to be shown
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    CONSTRAINT flows_state_is_known CHECK (state IN ('open', 'completed', 'failed', 'cancelled')),
    CONSTRAINT flows_policy_is_known CHECK (policy IN ('cancel', 'continue'))
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.flows IS 'Flows: chains, groups and graphs of jobs. Kept for 30 days after their end.';
CREATE INDEX flows_open ON jobherd.flows (id) WHERE state = 'open';
CREATE INDEX flows_stopping ON jobherd.flows (id) WHERE stopping IS NOT NULL;
CREATE INDEX flows_deadline ON jobherd.flows (deadline) WHERE deadline IS NOT NULL AND state = 'open' AND stopping IS NULL;
CREATE INDEX flows_outer ON jobherd.flows (outer_flow) WHERE outer_flow IS NOT NULL;
CREATE INDEX flows_ended ON jobherd.flows (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE jobherd.results (
    flow   bigint NOT NULL,
    item   integer NOT NULL,
    result json,
    PRIMARY KEY (flow, item)
);
COMMENT ON TABLE jobherd.results IS 'Results of the members of a flow that another job gets as a list.';

ALTER TABLE jobherd.ends ALTER state DROP NOT NULL, ALTER job DROP NOT NULL,
    ADD COLUMN delta integer NOT NULL DEFAULT -1;       -- what it adds to `pending`
ALTER TABLE jobherd.edges
    ADD COLUMN flow     bigint,                         -- the edge is kept until this flow is deleted
    ADD COLUMN argument text,                           -- the parameter that gets the result of the upstream job
    ADD COLUMN spread   boolean NOT NULL DEFAULT false, -- a job for each item of that result
    ADD COLUMN result   json;
CREATE INDEX edges_of_flow ON jobherd.edges (flow) WHERE flow IS NOT NULL;

-- A job without a flow costs these nothing.
CREATE INDEX ready_of_flow ON jobherd.ready (((extras).flow), id) WHERE (extras).flow > 0;
CREATE INDEX parked_of_flow ON jobherd.parked (((extras).flow), id) WHERE (extras).flow > 0;
CREATE INDEX scheduled_of_flow ON jobherd.scheduled (((extras).flow), id) WHERE (extras).flow > 0;
CREATE INDEX blocked_of_flow ON jobherd.blocked (((extras).flow), id) WHERE (extras).flow > 0;
CREATE INDEX history_of_flow ON jobherd.history (((extras).flow), id) WHERE (extras).flow > 0;

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

CREATE FUNCTION jobherd.with_item(job jobherd.extras, partition text, item integer)
RETURNS jobherd.extras
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    job.partition := partition;
    job.item := item;
    RETURN job;
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
    bad     text;
    deflt   record;
    there   CONSTANT jsonb := known;
BEGIN
    FOR node IN SELECT n FROM jsonb_array_elements(nodes) AS n LOOP
        name := node ->> 'node';
        IF name IS NULL OR length(name) NOT BETWEEN 1 AND 100 OR name ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION 'jobherd.start_flow: each node needs "node", a name of at most 100 characters'
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF known ? name AND NOT node ? 'item' THEN
            RAISE EXCEPTION 'jobherd.start_flow: two nodes are called %', quote_literal(name)
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF coalesce(node ->> 'kind', '') !~ '^[a-z0-9_][a-z0-9_.:-]*$' OR length(node ->> 'kind') > 100 THEN
            RAISE EXCEPTION 'jobherd.start_flow: node % has no kind like "mail:receipt"', quote_literal(name)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        texts := CASE WHEN node ? 'payloads' THEN array(SELECT t FROM jsonb_array_elements_text(node -> 'payloads') AS t)
                      ELSE ARRAY[coalesce(node ->> 'text', (node -> 'payload')::text, '{}')] END;
        edges := '[]';
        FOR chosen IN
            SELECT jsonb_build_object('up', a.up, 'wanted', coalesce(node ->> 'when', 'completed'))
              FROM jsonb_array_elements(CASE WHEN jsonb_typeof(node -> 'after') = 'array' THEN node -> 'after'
                                             WHEN node ->> 'after' IS NOT NULL THEN jsonb_build_array(node -> 'after') ELSE '[]' END) AS a (up)
            UNION ALL
            SELECT jsonb_build_object('up', b.value, 'wanted', coalesce(node ->> 'when', 'completed'), 'argument', b.key,
                                      'spread', b.key IS NOT DISTINCT FROM node ->> 'map')
              FROM jsonb_each(coalesce(node -> 'bind', '{}')) AS b
            UNION ALL
            SELECT jsonb_build_object('up', of_flow, 'wanted', CASE node ->> 'on' WHEN 'success' THEN 'completed'
                                                                WHEN 'failure' THEN 'failed' WHEN 'done' THEN 'ended' END,
                                      'argument', node ->> 'results')
             WHERE node ? 'on'
        LOOP
            bad := chosen ->> 'up';
            IF jsonb_typeof(chosen -> 'up') = 'string' THEN
                chosen := jsonb_set(chosen, '{up}', coalesce(known -> bad, 'null')) || jsonb_build_object('marked', NOT there ? bad);
            ELSIF (chosen -> 'up')::bigint = of_flow THEN
                chosen := chosen || '{"marked": true}';
            ELSE
                PERFORM jobherd.check_upstreams(ARRAY[bad::bigint], chosen ->> 'wanted', confined);
            END IF;
            IF chosen ->> 'up' IS NULL OR chosen ->> 'wanted' IS NULL OR chosen ->> 'wanted' <> ALL ('{completed,failed,ended}') THEN
                RAISE EXCEPTION 'jobherd.start_flow: node % waits for %, which is no node before it, or its "when" or "on" is wrong',
                    quote_literal(name), quote_literal(left(bad, 120))
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Name nodes after those that they wait for.';
            END IF;
            edges := edges || jsonb_build_array(chosen - 'up' || jsonb_build_object('job', chosen -> 'up'));
        END LOOP;
        -- two edges to one job are one: the one with the argument
        SELECT coalesce(jsonb_agg(e), '[]') INTO edges
          FROM (SELECT DISTINCT ON ((e -> 'job')::bigint) e FROM jsonb_array_elements(edges) AS e
                 ORDER BY (e -> 'job')::bigint, (e ->> 'argument') IS NULL) AS one;
        chosen := coalesce(node -> 'options', '{}');
        common := NULL;
        SELECT coalesce(k.queue, 'default') AS queue, coalesce(k.priority, 0) AS priority INTO deflt
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = node ->> 'kind';
        common.kind := node ->> 'kind';
        common.queue := coalesce(chosen ->> 'queue', deflt.queue);
        common.priority := coalesce((chosen ->> 'priority')::smallint, deflt.priority);
        common.run_at := coalesce((chosen ->> 'run_at')::timestamptz, now() + make_interval(secs => jobherd.seconds_of(chosen ->> 'delay')), now());
        common.expires_at := (chosen ->> 'expires_at')::timestamptz;
        common.timeout := jobherd.seconds_of(chosen ->> 'timeout');
        common.max_attempts := (chosen ->> 'max_attempts')::smallint;
        common.extras := jobherd.extras_of(base ->> 'tenant', jobherd.check_webhook(chosen ->> 'webhook'), NULL, (base ->> 'parent_id')::bigint,
                                           jobherd.check_traceparent(base ->> 'traceparent'));
        common.extras.partition := chosen ->> 'partition';
        IF NOT node ? 'on' THEN
            common.extras.flow := of_flow;
            common.extras.node := name;
            added := added + cardinality(texts);
        END IF;
        ids := jobherd.insert_node(common, texts, CASE WHEN node ? 'item' THEN (node ->> 'item')::integer WHEN node ? 'payloads' THEN 0 END,
                                   edges, of_flow, confined);
        IF NOT node ? 'item' AND cardinality(texts) = 1 THEN
            known := known || jsonb_build_object(name, ids[1]);
        END IF;
    END LOOP;
    RETURN jsonb_build_object('nodes', known, 'added', added);
END $$;

-- What is stored of the nodes to show the graph.
CREATE FUNCTION jobherd.sketch(nodes jsonb, known jsonb)
RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(jsonb_agg(s.one ORDER BY s.place), '[]')
      FROM (SELECT min(n.place) AS place,
                   jsonb_strip_nulls(jsonb_build_object(
                       'node', n.node ->> 'node', 'kind', min(n.node ->> 'kind'), 'job', known -> (n.node ->> 'node'), 'on', min(n.node ->> 'on'),
                       'after', (jsonb_agg(coalesce(n.node -> 'after', '[]')) -> 0)
                                || (SELECT coalesce(jsonb_agg(b.value), '[]') FROM jsonb_each(jsonb_agg(coalesce(n.node -> 'bind', '{}')) -> 0) AS b))) AS one
              FROM jsonb_array_elements(nodes) WITH ORDINALITY AS n (node, place)
             GROUP BY n.node ->> 'node') AS s
$$;

CREATE FUNCTION jobherd.start_flow(name text, nodes jsonb, options jsonb DEFAULT '{}')
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
    empty    CONSTANT text[] := '{tenant,parent_id,traceparent,policy,deadline,keeps}';
BEGIN
    SELECT k INTO what FROM jsonb_object_keys(options) AS k WHERE k <> ALL (empty) LIMIT 1;
    IF what IS NOT NULL OR jsonb_typeof(nodes) IS DISTINCT FROM 'array' OR coalesce(length(start_flow.name), 0) NOT BETWEEN 1 AND 200
       OR coalesce(options ->> 'policy', 'cancel') <> ALL ('{cancel,continue}') THEN
        RAISE EXCEPTION 'jobherd.start_flow: %', CASE WHEN what IS NOT NULL THEN format('unknown option "%s"', left(what, 120))
                                                      WHEN jsonb_typeof(nodes) IS DISTINCT FROM 'array' THEN 'nodes must be a JSON array'
                                                      WHEN options ? 'policy' THEN '"policy" must be cancel or continue'
                                                      ELSE 'name must have 1 to 200 characters' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Known options: ' || array_to_string(empty, ', ') || '.';
    END IF;
    made.tenant := coalesce(jobherd.check_tenant(options ->> 'tenant'), CASE WHEN jobherd.is_tenant() THEN (jobherd.own_tenants())[1] END);
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        FOR what IN SELECT DISTINCT n ->> 'kind' FROM jsonb_array_elements(nodes) AS n LOOP
            PERFORM jobherd.check_producer(what, made.tenant);
        END LOOP;
        confined := jobherd.is_tenant();
    END IF;
    made.id := nextval('jobherd.job_ids');
    done := jobherd.add_nodes(made.id, nodes, '{}', options || jsonb_build_object('tenant', made.tenant), confined);
    made.deadline := CASE WHEN options ? 'deadline' THEN now() + make_interval(secs => jobherd.seconds_of(options ->> 'deadline')) END;
    INSERT INTO jobherd.flows (id, name, pending, policy, keeps, parent_id, tenant, deadline, nodes)
    VALUES (made.id, start_flow.name, (done -> 'added')::bigint, coalesce(options ->> 'policy', 'cancel'),
            coalesce((options ->> 'keeps')::boolean, false) OR jsonb_path_exists(nodes, '$[*].results'), (options ->> 'parent_id')::bigint, made.tenant, made.deadline,
            jobherd.sketch(nodes, done -> 'nodes'));
    IF (done -> 'added')::bigint = 0 THEN
        INSERT INTO jobherd.ends (flow, delta) VALUES (made.id, 0);  -- an empty flow is over at once
    END IF;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN made.id;
END $$;
COMMENT ON FUNCTION jobherd.start_flow(text, jsonb, jsonb) IS
    'Enqueues the jobs of a flow, and returns its id. nodes: an array of {"node": "index", "kind": "import:index", "payload": {}, '
    '"options": {}, "after": ["other node", 42], "when": "completed", "bind": {"parameter": "other node"}, "map": "parameter", '
    '"on": "success"}. options: policy (cancel or continue), deadline, tenant, keeps.';

CREATE FUNCTION jobherd.extend_flow(flow_id bigint, nodes jsonb)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old      jobherd.flows;
    done     jsonb;
    what     text;
    confined boolean := false;
BEGIN
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id;
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        FOR what IN SELECT DISTINCT n ->> 'kind' FROM jsonb_array_elements(nodes) AS n LOOP
            PERFORM jobherd.check_producer(what, old.tenant);
        END LOOP;
        confined := jobherd.is_tenant();
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
COMMENT ON FUNCTION jobherd.extend_flow(bigint, jsonb) IS
    'Adds nodes to a flow that has not ended, and returns the number of jobs. Call it in a handler of the flow, in a transaction '
    'that ends before the job does.';

CREATE FUNCTION jobherd.cancel_flow(flow_id bigint, actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text;
BEGIN
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
    'Cancels all jobs of a flow. Returns ''cancelling'', the state of a flow that has ended, or null if there is no such flow.';

-- Cancels up to `most` members of a flow: those that wait end now, running ones are interrupted, inner flows are stopped.
-- Rows that another session has locked are left for the next time. Returns how many have ended.
CREATE FUNCTION jobherd.stop_members(of_flow bigint, most integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    why    CONSTANT text := (SELECT f.stopping FROM jobherd.flows f WHERE f.id = of_flow);
    part   text;
    gone   integer;
    total  integer := 0;
BEGIN
    UPDATE jobherd.flows f SET stopping = coalesce(f.stopping, why) WHERE f.outer_flow = of_flow AND f.state = 'open' AND f.stopping IS NULL;
    INSERT INTO jobherd.cancels (job)
    SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE (j.extras).flow = of_flow AND NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM jobherd.notify('jobherd_jobs', '@cancel');
    END IF;
    -- An edge of a canceled job is not passed on. A retry of the flow finds out what became of its upstream job.
    UPDATE jobherd.edges e SET state = 'unknown', marked = true
     WHERE e.flow = of_flow AND e.state IS NULL AND e.upstream <> of_flow;
    FOREACH part IN ARRAY '{blocked,scheduled,parked,ready}'::text[] LOOP
        EXECUTE format(
            'WITH held AS MATERIALIZED (
                 SELECT id FROM jobherd.%1$I WHERE (extras).flow = $1 AND (extras).flow > 0 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
             ), gone AS (
                 DELETE FROM jobherd.%1$I t USING held s WHERE t.id = s.id RETURNING t.*
             )
             INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                          state, queue, kind, payload, extras, timeout, error_code, error)
             SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE ''UTC'')::date + coalesce(k.keep_failed, 30),
                    g.priority, g.attempts, g.max_attempts, g.crashes, ''cancelled'', g.queue, g.kind, g.payload, g.extras, g.timeout,
                    ''FLOW_CANCELLED'', $3
               FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind', part) USING of_flow, most, why;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END $$;

-- Counts what has ended in one flow. Returns the number of rows of `ends`, null if another process has the flow.
CREATE FUNCTION jobherd.resolve_flow(of_flow bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    old    jobherd.flows;
    counts record;
    ended  integer := 0;
BEGIN
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM jobherd.flows f WHERE f.id = of_flow) THEN
        RETURN NULL;
    END IF;
    -- Race: all rows, in one statement that begins after the lock. With some of them, the end of a member could be counted
    -- before the members that it has added.
    WITH taken AS (
        DELETE FROM jobherd.ends e WHERE e.flow = of_flow RETURNING e.job, e.state, e.delta
    )
    SELECT count(*) AS rows, coalesce(sum(t.delta), 0) AS delta,
           coalesce(sum(-t.delta) FILTER (WHERE t.state = 'completed'), 0) AS completed,
           coalesce(sum(-t.delta) FILTER (WHERE t.state IN ('failed', 'expired')), 0) AS failed,
           coalesce(sum(-t.delta) FILTER (WHERE t.state = 'cancelled'), 0) AS cancelled,
           coalesce(array_agg(t.job) FILTER (WHERE t.delta < 0), '{}') AS jobs, coalesce(array_agg(t.state) FILTER (WHERE t.delta < 0), '{}') AS states
      INTO counts FROM taken t;
    IF old.keeps AND counts.jobs <> '{}' THEN
        INSERT INTO jobherd.results (flow, item, result)
        SELECT DISTINCT ON (h.id) of_flow, (h.extras).item, h.result FROM jobherd.history h
         WHERE h.id = ANY (counts.jobs) AND h.state = 'completed' AND (h.extras).item IS NOT NULL ORDER BY h.id, h.finished_at DESC
        ON CONFLICT (flow, item) DO UPDATE SET result = excluded.result;
    END IF;
    INSERT INTO jobherd.ends (flow, job, state, delta)
    SELECT 0, e.job, e.state, 0 FROM unnest(counts.jobs, counts.states) AS e (job, state)
     WHERE EXISTS (SELECT FROM jobherd.edges g WHERE g.upstream = e.job AND g.state IS NULL);
    IF old.state IS DISTINCT FROM 'open' THEN
        RETURN counts.rows;  -- a member that was run again after the end of its flow
    END IF;
    UPDATE jobherd.flows f
       SET pending = f.pending + counts.delta, completed = f.completed + counts.completed, failed = f.failed + counts.failed,
           cancelled = f.cancelled + counts.cancelled,
           stopping = CASE WHEN f.stopping IS NULL AND f.policy = 'cancel' AND f.failed + counts.failed > 0
                           THEN 'another job of the flow failed' ELSE f.stopping END
     WHERE f.id = of_flow RETURNING * INTO old;
    IF old.stopping IS NOT NULL AND old.pending > 0 THEN
        ended := jobherd.stop_members(of_flow, most);
    END IF;
    IF old.pending <= 0 THEN
        UPDATE jobherd.flows f
           SET state = CASE WHEN f.failed > 0 THEN 'failed' WHEN f.cancelled > 0 THEN 'cancelled' ELSE 'completed' END,
               ended_at = clock_timestamp(), stopping = NULL
         WHERE f.id = of_flow RETURNING * INTO old;
        INSERT INTO jobherd.ends (flow, job, state, delta)
        SELECT coalesce(old.outer_flow, 0), of_flow, old.state, CASE WHEN old.outer_flow IS NULL THEN 0 ELSE -1 END
         WHERE old.outer_flow IS NOT NULL OR EXISTS (SELECT FROM jobherd.edges g WHERE g.upstream = of_flow AND g.state IS NULL);
    END IF;
    RETURN counts.rows + ended;
END $$;

-- Resolves each flow that has rows in `ends`, is being stopped or is past its deadline. Returns the number of rows.
CREATE FUNCTION jobherd.resolve_flows(most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    next_one bigint := 0;
    total    bigint := 0;
BEGIN
    -- Race: a flow that a user's open transaction has locked is left for the next look. Such a transaction must not delay maintenance.
    UPDATE jobherd.flows f SET stopping = 'the deadline of the flow has passed'
      FROM (SELECT d.id FROM jobherd.flows d WHERE d.deadline < now() AND d.state = 'open' AND d.stopping IS NULL
             ORDER BY d.id LIMIT most FOR UPDATE SKIP LOCKED) AS late
     WHERE f.id = late.id;
    LOOP
        SELECT e.flow INTO next_one FROM jobherd.ends e WHERE e.flow > next_one ORDER BY e.flow LIMIT 1;
        EXIT WHEN NOT FOUND;
        total := total + coalesce(jobherd.resolve_flow(next_one, most), 0);
    END LOOP;
    FOR next_one IN SELECT f.id FROM jobherd.flows f WHERE f.stopping IS NOT NULL AND f.state = 'open' ORDER BY f.id LIMIT 100 LOOP
        total := total + coalesce(jobherd.resolve_flow(next_one, most), 0);
    END LOOP;
    RETURN total;
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
            INSERT INTO jobherd.ends (flow, job, state, delta) SELECT flow_id, inner_flow, f.before, 1
              FROM (SELECT CASE WHEN EXISTS (SELECT FROM jobherd.ends e WHERE e.flow = inner_flow AND e.delta > 0 AND e.state <> 'cancelled')
                                THEN 'failed' ELSE 'cancelled' END AS before) AS f;
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
    PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('flow', flow_id), reason);
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN total;
END $$;
COMMENT ON FUNCTION jobherd.retry_flow(bigint, text, text) IS
    'Runs a flow that has failed or was canceled again, from where it failed: completed jobs stay. Returns how many jobs run again, '
    '0 if the flow is open or completed, or null if there is no such flow.';

-- Deletes flows that ended 30 days ago, up to `most`, with their edges and results.
CREATE FUNCTION jobherd.delete_flows(most integer)
RETURNS SETOF bigint
LANGUAGE sql
AS $$
    WITH old AS MATERIALIZED (
        SELECT f.id FROM jobherd.flows f WHERE f.ended_at < clock_timestamp() - interval '30 days' ORDER BY f.ended_at LIMIT most FOR UPDATE SKIP LOCKED
    ), untied AS (
        DELETE FROM jobherd.edges e USING old o WHERE e.flow = o.id
    ), forgotten AS (
        DELETE FROM jobherd.results r USING old o WHERE r.flow = o.id
    )
    DELETE FROM jobherd.flows f USING old o WHERE f.id = o.id RETURNING f.id
$$;

-- Returns the result of a job, or of all members of a flow as a list in the order of their items.
CREATE FUNCTION jobherd.result_of(job bigint)
RETURNS json
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.flows f WHERE f.id = job) THEN
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
        IF edge.spread THEN
            spread := edge.argument;
            list := edge.result;
            IF json_typeof(coalesce(edge.result, 'null')) <> 'array' THEN
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
    IF wrong IS NOT NULL THEN
        DELETE FROM jobherd.blocked b WHERE b.id = blocked_id;
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes, state, queue,
                                     kind, payload, extras, timeout, error_code, error)
        VALUES (job.id, job.created_at, job.run_at, clock_timestamp(),
                (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = job.kind), 30), job.priority,
                job.attempts, job.max_attempts, job.crashes, 'failed', job.queue, job.kind, job.payload, job.extras, job.timeout,
                'RESULTS_INVALID', wrong);
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
CREATE FUNCTION jobherd.pass_on(ended bigint[], states text[], most integer, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    held bigint[];
    one  bigint;
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
    FOR one IN SELECT DISTINCT e.downstream FROM jobherd.edges e WHERE e.downstream = ANY (held) AND e.argument IS NOT NULL LOOP
        IF NOT EXISTS (SELECT FROM jobherd.edges e
                        WHERE e.downstream = one AND (e.state IS NULL OR NOT jobherd.is_wanted(e.wanted, e.state))) THEN
            released := released + jobherd.bind_results(one);
        END IF;
    END LOOP;
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

-- A retry by hand of a member.
CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    later  jobherd.ready;
    answer text;
    did    boolean := false;
    key    bytea;
    what   text;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.scheduled s WHERE s.id = job_id RETURNING s.* INTO later;
        IF FOUND THEN
            later.run_at := now();
            INSERT INTO jobherd.ready SELECT later.* RETURNING 'ready' INTO answer;
        END IF;
        IF answer IS NULL THEN
            SELECT (h.extras).unique_key, h.kind INTO key, what FROM jobherd.history h WHERE h.id = job_id
             ORDER BY h.finished_at DESC LIMIT 1;
            IF key IS NOT NULL AND jobherd.take_key(key, job_id, what) <> job_id THEN
                RETURN 'conflict';
            END IF;
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on,
                                              error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       (now() AT TIME ZONE 'UTC')::date
                       + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30),
                       error_code, error, traceback, ran_on, usage, post_mortem
                  FROM over
            ), counted AS (  -- the flow of a member that runs again waits for it, unless it has ended
                INSERT INTO jobherd.ends (flow, job, state, delta)
                SELECT (extras).flow, id, state, 1 FROM over WHERE (extras).flow > 0
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue,
                                       kind, payload, extras, lane)
            SELECT id, created_at, now(), timeout,
                   nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras, jobherd.lane_of((extras).partition)
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF did THEN
            DELETE FROM jobherd.cancels WHERE job = job_id;  -- a request about the earlier run
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.waiting WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'blocked' INTO answer FROM jobherd.blocked WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r
             WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;
COMMENT ON FUNCTION jobherd.retry_as(bigint, text, text) IS
    'Runs a job again: at once if it waits for its time, from the start if it has finished. It keeps its '
    'id, its history and its timeout; its counts begin again. Returns ''ready'', ''running'' or ''blocked'' (nothing to '
    'do), ''conflict'' (another live job holds its key), or null if there is no such job.';

-- A canceled member keeps its edges for a retry of its flow.
CREATE OR REPLACE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), parked AS (
            DELETE FROM jobherd.parked WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), blocked AS (
            DELETE FROM jobherd.blocked WHERE id = job_id RETURNING *
        ), untied AS (
            DELETE FROM jobherd.edges WHERE downstream = job_id AND flow IS NULL
        ), unknown AS (
            UPDATE jobherd.edges SET state = 'unknown', marked = true
             WHERE downstream = job_id AND flow IS NOT NULL AND state IS NULL AND EXISTS (SELECT FROM blocked)
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM parked UNION ALL SELECT * FROM later UNION ALL SELECT * FROM blocked
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts,
                                     crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(),
               (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout,
               'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', 'jobherd.' || ' ' || job_id || '=' || answer);
        ELSE
            -- `running` is as small as the fleet, so the claim is found through its jobs. Its row is not locked.
            IF EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE j.id = job_id) THEN
                INSERT INTO jobherd.cancels (job)
                SELECT job_id WHERE NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = job_id)
                ON CONFLICT DO NOTHING;
                did := true;
                answer := 'cancelling';
                PERFORM jobherd.notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

-- Marks the upstream jobs of new edges, and looks for those that have ended before. `past`: continue behind this job.
-- Returns the job up to which it has looked, null after the last one. Run by maintenance processes.
--
-- Race: one snapshot says where a job is. A job that has moved since is not found by the UPDATE, and its edge is left for
-- the next look. Running jobs too: changing the row of a claim would delay its settlement.
CREATE FUNCTION jobherd.mark_upstreams(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    jobs   bigint[];
    known  bigint[] := '{}';
    still  bigint[];
    ended  bigint[];
    states text[];
    part   text;
    found_ones bigint[];
BEGIN
    WITH RECURSIVE each (job, place) AS (  -- Cost: one look into the index for each job, however many edges it has
        SELECT min(e.upstream), 1 FROM jobherd.edges e WHERE NOT e.marked AND e.upstream > coalesce(past, 0)
        UNION ALL
        SELECT (SELECT min(e.upstream) FROM jobherd.edges e WHERE NOT e.marked AND e.upstream > each.job), place + 1
          FROM each WHERE job IS NOT NULL AND place < most
    )
    SELECT array_agg(job ORDER BY job) INTO jobs FROM each WHERE job IS NOT NULL;
    IF jobs IS NULL THEN
        RETURN NULL;
    END IF;
    WITH at AS MATERIALIZED (
        SELECT u.job,
               EXISTS (SELECT FROM jobherd.ready r WHERE r.id = u.job) OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = u.job)
               OR EXISTS (SELECT FROM jobherd.parked p WHERE p.id = u.job)
               OR EXISTS (SELECT FROM jobherd.blocked b WHERE b.id = u.job) AS waits,
               (SELECT f.state FROM jobherd.flows f WHERE f.id = u.job) AS flow_state,
               (SELECT (j.extras).flow IS NOT NULL FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
                 WHERE j.id = u.job LIMIT 1) AS runs_marked,
               (SELECT h.state FROM jobherd.history h WHERE h.id = u.job ORDER BY h.finished_at DESC LIMIT 1) AS state
          FROM unnest(jobs) AS u (job)
    )
    SELECT coalesce(array_agg(job) FILTER (WHERE waits), '{}'), coalesce(array_agg(job) FILTER (WHERE runs_marked OR flow_state = 'open'), '{}'),
           array_agg(job) FILTER (WHERE NOT waits AND runs_marked IS NULL AND flow_state IS DISTINCT FROM 'open'),
           -- of a job that leaves no history: it has completed
           array_agg(coalesce(flow_state, state, 'completed')) FILTER (WHERE NOT waits AND runs_marked IS NULL AND flow_state IS DISTINCT FROM 'open')
      INTO still, known, ended, states FROM at;
    FOREACH part IN ARRAY '{ready,scheduled,parked,blocked}'::text[] LOOP
        EXIT WHEN still = '{}';
        EXECUTE format('WITH free AS MATERIALIZED (SELECT id FROM jobherd.%1$I WHERE id = ANY ($1) FOR UPDATE SKIP LOCKED),'
                       ' done AS (UPDATE jobherd.%1$I t SET extras.flow = coalesce((t.extras).flow, 0) FROM free'
                       ' WHERE t.id = free.id RETURNING t.id)'
                       ' SELECT coalesce(array_agg(id), ''{}'') FROM done', part) INTO found_ones USING still;
        known := known || found_ones;
    END LOOP;
    IF ended IS NOT NULL THEN
        INSERT INTO jobherd.ends (flow, job, state) SELECT 0, e.job, e.state FROM unnest(ended, states) AS e (job, state);
        known := known || ended;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT e.downstream, e.upstream FROM jobherd.edges e WHERE e.upstream = ANY (known) AND NOT e.marked FOR UPDATE SKIP LOCKED
    )
    UPDATE jobherd.edges e SET marked = true FROM free f WHERE e.downstream = f.downstream AND e.upstream = f.upstream;
    RETURN CASE WHEN cardinality(jobs) >= most THEN jobs[cardinality(jobs)] END;
END $$;
