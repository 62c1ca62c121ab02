-- Cancel a flow, with an audit entry. Run on users' request. Columns: answer, see jobherd.cancel_flow.
SELECT jobherd.cancel_flow(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
