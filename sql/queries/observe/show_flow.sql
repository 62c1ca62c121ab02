-- Show one flow. Run on users' request. Columns: of jobherd.flows, and asked_at. No row: the flow does not exist.
SELECT f.*, clock_timestamp() AS asked_at FROM jobherd.flows f WHERE f.id = %(id)s::bigint
