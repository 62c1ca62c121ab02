-- Actions of users on flows: cancel. Retry is in 35_retry_flows.sql.

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
