-- Show one flow. Run on users' request. Columns: of jobherd.flows, and asked_at. No row: there is no such flow.
SELECT f.*, clock_timestamp() AS asked_at FROM jobherd.flows f WHERE f.id = %(id)s::bigint
