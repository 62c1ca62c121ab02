-- Enqueue the jobs of a flow. Run by producers, in their own transaction. Parameters: name, nodes and options (JSON, as
-- jobherd.start_flow takes them). Returns the id of the flow.
SELECT jobherd.start_flow(%(name)s::text, %(nodes)s::jsonb, %(options)s::jsonb) AS id
