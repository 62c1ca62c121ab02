-- Child jobs that a job waits for: `job.spawn` and `job.gather`.
--
-- The children of one step are the members of a flow that has the job as its parent, and the name of the step. One commit under the
-- fence of the claim enqueues them and records the step. The end of such a flow adds a row to `signals`, in the same commit. The
-- parent's wait names the flow. Maintenance processes check each new wait and each new signal after its commit, as for
-- other signals, so the one that is checked second sees the other. Whether the parent continues is decided by the state of the
-- flow, not by the signal: a flow can be open again. tests/models/gather.pml proves the protocol.

-- Trigger on `flows`: tells maintenance processes that the children of a job have ended.
CREATE FUNCTION jobherd.tell_parent()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO jobherd.signals (topic) VALUES ('flow/' || NEW.id);
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN NULL;
END $$;
CREATE TRIGGER tell_parent AFTER UPDATE OF state ON jobherd.flows FOR EACH ROW
    WHEN (NEW.step IS NOT NULL AND OLD.state = 'open' AND NEW.state <> 'open') EXECUTE FUNCTION jobherd.tell_parent();

-- Trigger on `history`: cancels the children of a job that was canceled. A settlement must not wait for a session that has
-- locked a flow: such a flow is left to sweep_children().
CREATE FUNCTION jobherd.stop_children()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.flows f SET stopping = 'the parent job was canceled'
      FROM (SELECT o.id FROM jobherd.flows o
             WHERE o.parent_id = NEW.id AND o.step IS NOT NULL AND o.state = 'open' AND o.stopping IS NULL AND NOT o.outlives
               FOR UPDATE SKIP LOCKED) AS free
     WHERE f.id = free.id;
    RETURN NULL;
END $$;
CREATE TRIGGER stop_children AFTER INSERT ON jobherd.history FOR EACH ROW WHEN (NEW.state = 'cancelled')
    EXECUTE FUNCTION jobherd.stop_children();

-- Cancels the children of canceled jobs that the trigger could not reach, among the `most` parents with the lowest ids behind `past`.
-- Returns the last of these parents, null if there are no more, and how many flows it stops.
CREATE FUNCTION jobherd.sweep_children(past bigint, most integer, OUT last bigint, OUT stopped bigint)
LANGUAGE plpgsql
SET jit = off
AS $$
DECLARE
    parents bigint[];
BEGIN
    stopped := 0;
    parents := array(SELECT f.parent_id FROM jobherd.flows f
                      WHERE f.step IS NOT NULL AND f.state = 'open' AND f.parent_id > coalesce(past, 0) ORDER BY f.parent_id LIMIT most);
    IF parents = '{}' THEN
        RETURN;
    END IF;
    last := parents[cardinality(parents)];
    UPDATE jobherd.flows f SET stopping = 'the parent job was canceled'
      FROM (SELECT o.id FROM jobherd.flows o
             WHERE o.parent_id = ANY (parents) AND o.step IS NOT NULL AND o.state = 'open' AND o.stopping IS NULL AND NOT o.outlives
               AND EXISTS (SELECT FROM jobherd.history h WHERE h.id = o.parent_id AND h.state = 'cancelled')
               FOR UPDATE SKIP LOCKED) AS free
     WHERE f.id = free.id;
    GET DIAGNOSTICS stopped = ROW_COUNT;
END $$;

-- Enqueues the children of a running job and records the step that does so. Returns the record: {"flow", "jobs"}. Null: the claim
-- is lost, and nothing is written. Run by workers.
--
-- Fencing: the row of the claim is locked, so that no process can take the claim away. Idempotency: a statement that is sent again
-- because its answer was lost waits for that lock, then finds the record and enqueues nothing.
CREATE FUNCTION jobherd.spawn_children(
    owner bigint, claim bigint, parent bigint, step_name text, flow_name text, nodes jsonb, options jsonb, jobs bigint, leaves boolean,
    attempt_number integer, handler_version integer
)
RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    own  text;
    made bigint;
    done json;
BEGIN
    PERFORM FROM jobherd.running r WHERE r.child = owner AND r.token = claim FOR NO KEY UPDATE;
    SELECT (j.extras).tenant INTO own FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE r.child = owner AND r.token = claim AND j.id = parent;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT s.result INTO done FROM jobherd.steps s WHERE s.job = parent AND s.name = step_name;
    IF FOUND THEN
        RETURN done;
    END IF;
    made := jobherd.start_flow(flow_name, nodes, options || jsonb_strip_nulls(jsonb_build_object('tenant', own, 'parent_id', parent)));
    UPDATE jobherd.flows f SET step = step_name, outlives = leaves WHERE f.id = made;
    INSERT INTO jobherd.steps (job, name, result, token, attempt, version)
    VALUES (parent, step_name, json_build_object('flow', made, 'jobs', jobs), claim, attempt_number, handler_version)
    RETURNING result INTO done;
    RETURN done;
END $$;
