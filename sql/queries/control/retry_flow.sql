-- Run a flow again from where it failed, or from a node, with an audit entry. Run on users' request. Parameters: id, actor, reason,
-- node (null: from where it failed). Columns: answer, see jobherd.retry_flow.
SELECT jobherd.retry_flow(%(id)s::bigint, %(actor)s::text, %(reason)s::text, %(node)s::text) AS answer
