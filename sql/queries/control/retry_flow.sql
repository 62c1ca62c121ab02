-- Run a flow again from where it failed, with an audit entry. Run on users' request. Columns: answer, see jobherd.retry_flow.
SELECT jobherd.retry_flow(%(id)s::bigint, %(actor)s::text, %(reason)s::text) AS answer
