-- Add nodes to a flow that has not ended. Run by handlers of its members. Parameters: flow (its id), nodes (JSON, as
-- jobherd.extend_flow takes them). Returns the number of jobs.
SELECT jobherd.extend_flow(%(flow)s::bigint, %(nodes)s::jsonb) AS added
