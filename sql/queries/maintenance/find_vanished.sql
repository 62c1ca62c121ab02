-- Look for vanished members of flows, and for vanished jobs that others wait for; they count as canceled. Run by maintenance processes
-- every hour while jobs wait or flows are open. Parameters: past_flow, past_job (of the page before, or null), most. Columns: flow, job (null: no page is left).
SELECT jobherd.find_vanished_members(%(past_flow)s::bigint, %(most)s::integer) AS flow,
       jobherd.find_vanished_upstreams(%(past_job)s::bigint, %(most)s::integer) AS job
