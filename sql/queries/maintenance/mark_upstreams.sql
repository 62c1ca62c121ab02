-- Mark the upstream jobs of new edges, and find those that have ended before. Run by maintenance processes while edges
-- exist. Parameters: past (the result of the page before, or null), most (jobs of a page). Columns: last (null: no page is left).
SELECT jobherd.mark_upstreams(%(past)s::bigint, %(most)s::integer) AS last
