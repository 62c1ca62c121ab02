-- Flows: jobs with one common end. Chains, groups and graphs are flows.
--
-- The members of a flow name it in their extras. `pending` counts those that had not ended when a maintenance process
-- looked last. No end of a member writes it: each adds a row to `ends`, and so does each transaction that adds members.
-- jobherd.resolve_flow() locks the row of the flow, takes away all rows of `ends` that one statement sees, and adds them up.
-- At 0 the flow has ended. tests/models/resolve.pml proves it.
--
-- A flow has an id of the same sequence as jobs. Its end is passed on like that of a job, so a job can wait for a flow: the
-- jobs that run after a group do. A node with a job for each item of a list is a flow whose `outer_flow` is the graph.

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
    mapped     json,                                    -- of a node with a job for each item: the job before it got the list
    step       text COLLATE "C",                        -- of the parent job, which has spawned the members in this step
    outlives   boolean NOT NULL DEFAULT false,          -- the members continue if the parent job is canceled
    sealed     boolean NOT NULL DEFAULT true,           -- only running members add members; if not, it does not end without members
    version    integer,                                 -- of the program that started it: to be shown
    unique_key text COLLATE "C",                        -- no other flow of this name and tenant is open with this key
    CONSTRAINT flows_state_is_known CHECK (state IN ('open', 'completed', 'failed', 'cancelled')),
    CONSTRAINT flows_policy_is_known CHECK (policy IN ('cancel', 'continue'))
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.flows IS 'Flows: chains, groups and graphs of jobs. Kept for 30 days after their end.';
CREATE INDEX flows_open ON jobherd.flows (id) WHERE state = 'open';
CREATE INDEX flows_stopping ON jobherd.flows (id) WHERE stopping IS NOT NULL;
CREATE INDEX flows_deadline ON jobherd.flows (deadline) WHERE deadline IS NOT NULL AND state = 'open' AND stopping IS NULL;
CREATE INDEX flows_outer ON jobherd.flows (outer_flow) WHERE outer_flow IS NOT NULL;
CREATE INDEX flows_spawned ON jobherd.flows (parent_id) WHERE step IS NOT NULL AND state = 'open';
CREATE UNIQUE INDEX flows_unique ON jobherd.flows (name, unique_key, tenant) NULLS NOT DISTINCT WHERE state = 'open' AND unique_key IS NOT NULL;
CREATE INDEX flows_failed ON jobherd.flows (ended_at) WHERE state = 'failed' AND outer_flow IS NULL;
CREATE INDEX flows_ended ON jobherd.flows (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE jobherd.results (
    flow   bigint NOT NULL,
    item   integer NOT NULL,
    result json,
    PRIMARY KEY (flow, item)
);
COMMENT ON TABLE jobherd.results IS 'Results of the members of a flow that another job gets as a list.';

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
    old      jobherd.flows;
    done     jsonb;
    confined boolean := false;
    what     text;
    wrong    text;
    given    CONSTANT jsonb := coalesce(options, '{}');
    known    CONSTANT text[] := '{tenant,parent_id,traceparent,policy,deadline,keeps,sealed,version,unique_key}';
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
            what := 'sealed';
            made.sealed := coalesce((given ->> 'sealed')::boolean, true);
            what := 'version';
            made.version := (given ->> 'version')::integer;
            IF made.version < 1 THEN RAISE EXCEPTION 'must be at least 1'; END IF;
            what := 'unique_key';
            made.unique_key := given ->> 'unique_key';
            IF length(made.unique_key) NOT BETWEEN 1 AND 200 OR made.unique_key ~ '[[:cntrl:]]' OR jsonb_typeof(given -> 'unique_key') NOT IN ('string', 'null') THEN
                RAISE EXCEPTION 'must have 1 to 200 printable characters';
            END IF;
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
    LOOP
        made.id := nextval('jobherd.job_ids');
        EXIT WHEN made.unique_key IS NULL;
        -- Race: the index waits for a transaction that starts a flow with the same key.
        INSERT INTO jobherd.flows (id, name, unique_key, tenant) VALUES (made.id, start_flow.name, made.unique_key, made.tenant)
        ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        SELECT f.* INTO old FROM jobherd.flows f
         WHERE f.name = start_flow.name AND f.unique_key = made.unique_key AND f.tenant IS NOT DISTINCT FROM made.tenant AND f.state = 'open';
        IF FOUND THEN
            RETURN old.id;
        END IF;  -- it has ended meanwhile, or the id is in use, as in a database whose sequence was set back
    END LOOP;
    done := jobherd.add_nodes(made.id, nodes, '{}', given || jsonb_build_object('tenant', made.tenant), confined);
    INSERT INTO jobherd.flows (id, name, pending, policy, keeps, parent_id, tenant, deadline, sealed, version, unique_key, nodes)
    VALUES (made.id, start_flow.name, (done -> 'added')::bigint, coalesce(given ->> 'policy', 'cancel'), made.keeps, made.parent_id, made.tenant,
            made.deadline, made.sealed, made.version, made.unique_key, jobherd.sketch(nodes, done -> 'nodes'))
    ON CONFLICT (id) DO UPDATE  -- the row that holds the key
       SET pending = excluded.pending, policy = excluded.policy, keeps = excluded.keeps, parent_id = excluded.parent_id,
           deadline = excluded.deadline, sealed = excluded.sealed, version = excluded.version, nodes = excluded.nodes;
    IF (done -> 'added')::bigint = 0 THEN
        INSERT INTO jobherd.ends (flow, delta) VALUES (made.id, 0);  -- an empty flow is over at once
    END IF;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN made.id;
END $$;
COMMENT ON FUNCTION jobherd.start_flow(text, jsonb, jsonb) IS
    'Enqueues the jobs of a flow, and returns its id. nodes: an array of {"node": "index", "kind": "import:index", "payload": {}, '
    '"options": {}, "after": ["other node", 42], "when": "completed", "bind": {"parameter": "other node"}, "map": "parameter", '
    '"on": "success"}. options: policy (cancel or continue), deadline, tenant, keeps, sealed (false: other programs add nodes '
    'until jobherd.seal_flow), version, unique_key (while a flow of this name and tenant with this key is open, its id is returned '
    'and nothing is enqueued).';

-- The key of the lock that those who add to an unsealed flow share, until their commit.
CREATE FUNCTION jobherd.seal_lock(flow_id bigint)
RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT hashtextextended('jobherd.seal_flow', flow_id)
$$;

CREATE FUNCTION jobherd.extend_flow(flow_id bigint, nodes jsonb)
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
    IF NOT old.sealed THEN
        -- Race: held until the commit, so that the flow is not sealed, and does not end, before the new members are counted.
        PERFORM pg_advisory_xact_lock_shared(jobherd.seal_lock(flow_id));
        SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id;
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            -- Race: an older snapshot does not show a seal or an end. Then FOR SHARE raises 40001 (FOR KEY SHARE does not). The
            -- lock is released at once, with its subtransaction: maintenance skips a flow whose row is locked.
            BEGIN
                PERFORM FROM jobherd.flows f WHERE f.id = flow_id FOR SHARE;
                RAISE SQLSTATE 'JHOPN';
            EXCEPTION WHEN SQLSTATE 'JHOPN' THEN
                NULL;
            END;
        END IF;
    END IF;
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
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Only a running member of a flow can add members, or any program before jobherd.seal_flow.';
    END IF;
    -- An item has a number, so that a name can be used again.
    done := jobherd.add_nodes(flow_id, nodes, coalesce((SELECT jsonb_object_agg(n ->> 'node', n -> 'job') FROM jsonb_array_elements(old.nodes) AS n WHERE n ? 'job'), '{}'),
                              jsonb_build_object('tenant', old.tenant, 'parent_id', old.parent_id), confined);
    INSERT INTO jobherd.ends (flow, delta) VALUES (flow_id, (done -> 'added')::integer);
    RETURN (done -> 'added')::bigint;
END $$;
COMMENT ON FUNCTION jobherd.extend_flow(bigint, jsonb) IS
    'Adds nodes to a flow that has not ended, and returns the number of jobs. Call it in a handler of the flow, in a transaction '
    'that ends before the job does, or in any program before jobherd.seal_flow.';

CREATE FUNCTION jobherd.seal_flow(flow_id bigint)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old jobherd.flows;
BEGIN
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = flow_id;
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        IF NOT FOUND OR jobherd.is_tenant() AND (old.tenant = ANY (jobherd.own_tenants())) IS NOT TRUE THEN
            RETURN NULL;
        END IF;
        PERFORM jobherd.check_producer('', old.tenant);
    END IF;
    IF NOT old.sealed THEN
        PERFORM pg_advisory_xact_lock(jobherd.seal_lock(flow_id));  -- Race: waits for open transactions that add members
        UPDATE jobherd.flows f SET sealed = true WHERE f.id = flow_id AND NOT f.sealed;
        INSERT INTO jobherd.ends (flow, delta) VALUES (flow_id, 0);  -- it may have ended already
        PERFORM jobherd.notify('jobherd_jobs', '@due');
    END IF;
    RETURN (SELECT CASE f.state WHEN 'open' THEN 'sealed' ELSE f.state END FROM jobherd.flows f WHERE f.id = flow_id);
END $$;
COMMENT ON FUNCTION jobherd.seal_flow(bigint) IS
    'Ends the time in which any program can add nodes to a flow that was started with {"sealed": false}. It ends when its jobs have. '
    'Waits for transactions that are adding nodes. Returns ''sealed'', the state of a flow that has ended, or null if the flow does not exist.';
