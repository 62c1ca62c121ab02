-- Seal a flow, after which only its running members add members. Run by producers. Columns: answer, see jobherd.seal_flow.
SELECT jobherd.seal_flow(%(id)s::bigint) AS answer
