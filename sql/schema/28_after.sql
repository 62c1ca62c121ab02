-- Jobs that wait for other jobs: the option `after`.
--
-- A job that waits is in `blocked`, with one row in `edges` for each job that it waits for, its upstream jobs. An
-- upstream job is marked: its extras name a flow, 0 if it belongs to none. When a marked job gets into the history,
-- a trigger adds a row to `ends` in the same transaction. Maintenance processes take these rows, write the state
-- into the edges, and release or cancel the blocked jobs (29_resolve.sql). So no settlement waits for another one.
--
-- A producer marks nothing: its transaction would lock rows that claims wait for. After its commit a maintenance
-- process looks where the upstream jobs are (jobherd.mark_upstreams). tests/models/after.pml proves the protocol.

CREATE TABLE jobherd.edges (
    downstream bigint  NOT NULL,                        -- the job in `blocked`
    upstream   bigint  NOT NULL,                        -- the job that it waits for
    wanted     text COLLATE "C" NOT NULL DEFAULT 'completed',
    state      text COLLATE "C",                        -- in which the upstream job ended; null: it has not
    marked     boolean NOT NULL DEFAULT false,          -- the upstream job is marked, or its end is known
    flow       bigint,                                  -- the edge is kept until this flow is deleted
    argument   text,                                    -- the parameter that gets the result of the upstream job
    spread     boolean NOT NULL DEFAULT false,          -- a job for each item of that result
    result     json,
    PRIMARY KEY (downstream, upstream),
    CONSTRAINT edges_wanted_is_an_end CHECK (wanted IN ('completed', 'failed', 'ended'))
)
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.edges IS 'Which blocked job waits for which job. Deleted once the blocked job is released.';
CREATE INDEX edges_open ON jobherd.edges (upstream, downstream) WHERE state IS NULL;
CREATE INDEX edges_unmarked ON jobherd.edges (upstream) WHERE NOT marked;
CREATE INDEX edges_of_flow ON jobherd.edges (flow) WHERE flow IS NOT NULL;

CREATE TABLE jobherd.ends (
    flow  bigint NOT NULL,                              -- 0: the job belongs to no flow
    id    bigint GENERATED ALWAYS AS IDENTITY,
    job   bigint,                                       -- null: no member has ended, or several have
    jobs  bigint[],                                     -- members that one settlement has ended together
    state text COLLATE "C",                             -- in which the job ended
    delta integer NOT NULL DEFAULT -1,                  -- what it adds to `pending` of the flow
    at    timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (flow, id)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE jobherd.ends IS 'Ends of marked jobs that maintenance processes have not passed on yet.';

-- Trigger on `history`. Whatever ends a job inserts there, so no way to end one is missed. A job that is not needed, since the job whose failure it waits for has completed, is canceled. Its flow does not count that.
-- Cost: settle/settle_members writes the ends of its jobs itself, in one row for each flow, and sets `end_noted`.
CREATE FUNCTION jobherd.note_end()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO jobherd.ends (flow, job, state)
    VALUES ((NEW.extras).flow, NEW.id, CASE WHEN NEW.error_code = 'UPSTREAM_COMPLETED' THEN 'skipped' ELSE NEW.state END);
    RETURN NULL;
END $$;
CREATE TRIGGER note_end AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).flow IS NOT NULL AND NEW.end_noted IS NULL)
    EXECUTE FUNCTION jobherd.note_end();

-- Returns upstream jobs without duplicates. Raises an error for ids that no job has, and for jobs of other tenants, unless
-- `tenants` is null: a tenant must not learn when another tenant's job ends.
-- The ids of lower shards do not exist here: otherwise a job that waits for a job of another database would start at once.
CREATE FUNCTION jobherd.check_upstreams(upstream bigint[], wanted text, tenants text[])
RETURNS bigint[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    jobs CONSTANT bigint[] := array(SELECT DISTINCT u FROM unnest(upstream) AS u ORDER BY u);
    bad  bigint;
BEGIN
    IF wanted <> ALL ('{completed,failed,ended}') THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "when" is completed, failed or ended, not %', quote_literal(left(wanted, 40))
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(jobs) NOT BETWEEN 1 AND 1000 OR array_position(jobs, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "after" must name 1 to 1000 jobs'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Put more jobs than that into a group.';
    END IF;
    SELECT u INTO bad FROM unnest(jobs) AS u
     WHERE u < (SELECT s.seqmin FROM pg_catalog.pg_sequence s WHERE s.seqrelid = 'jobherd.job_ids'::regclass)
        OR u > (SELECT s.last_value FROM jobherd.job_ids s)
        OR tenants IS NOT NULL AND NOT EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = u AND j.tenant = ANY (tenants))
           AND NOT EXISTS (SELECT FROM jobherd.flows f WHERE f.id = u AND f.tenant = ANY (tenants))
     LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobherd.enqueue: option "after" names job %, which does not exist', bad
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Enqueue the job that must run first before the one that waits.';
    END IF;
    RETURN jobs;
END $$;

-- Enqueues jobs of one kind that wait until other jobs have ended, and returns their ids in the order of the
-- payloads. Producers may not write `blocked`, so it runs as the owner. wanted: see jobherd.enqueue, `when`.
CREATE FUNCTION jobherd.enqueue_after(
    kind text, payloads text[], upstream bigint[], wanted text DEFAULT NULL, partition text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, timeout double precision DEFAULT NULL,
    priority smallint DEFAULT 0, max_attempts smallint DEFAULT NULL, queue text DEFAULT 'default',
    tenant text DEFAULT NULL, webhook text DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    parent_id bigint DEFAULT NULL, traceparent text DEFAULT NULL
)
RETURNS TABLE (place integer, id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    jobs    bigint[];
    common  jobherd.extras;
    divided text[];
    confined boolean := false;
    named   CONSTANT text := partition;
BEGIN
    IF session_user <> current_user OR current_setting('role') <> 'none' THEN
        PERFORM jobherd.check_producer(kind, tenant);
        confined := jobherd.is_tenant();
    END IF;
    jobs := jobherd.check_upstreams(upstream, coalesce(wanted, 'completed'), CASE WHEN confined THEN jobherd.own_tenants() END);
    common := jobherd.extras_of(tenant, jobherd.check_webhook(webhook), payload_bytes, parent_id,
                                jobherd.check_traceparent(traceparent));
    SELECT k.partition_by INTO divided FROM jobherd.kinds k WHERE k.name = enqueue_after.kind;
    RETURN QUERY
    WITH new AS MATERIALIZED (
        SELECT p.place::integer AS place, nextval('jobherd.job_ids') AS id, p.payload,
               jobherd.partition_of(named, divided, p.payload::json, enqueue_after.tenant, confined) AS name
          FROM unnest(payloads) WITH ORDINALITY AS p (payload, place)
    ), put AS (
        INSERT INTO jobherd.blocked (id, run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
        SELECT n.id, coalesce(enqueue_after.run_at, now()), enqueue_after.expires_at, enqueue_after.timeout,
               enqueue_after.priority, enqueue_after.max_attempts, enqueue_after.queue, enqueue_after.kind, n.payload::json,
               jobherd.with_partition(common, n.name), jobherd.lane_of(n.name)
          FROM new n
    ), tied AS (
        INSERT INTO jobherd.edges (downstream, upstream, wanted)
        SELECT n.id, u, coalesce(enqueue_after.wanted, 'completed') FROM new n CROSS JOIN unnest(jobs) AS u
    )
    SELECT n.place, n.id FROM new n ORDER BY n.place;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
END $$;
COMMENT ON FUNCTION jobherd.enqueue_after IS
    'Enqueues jobs of one kind that wait until other jobs have ended. Returns for each payload the id of its job.';
