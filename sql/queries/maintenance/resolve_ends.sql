-- Count the ends of members of flows, and pass up to %(most)s ends of jobs on to the jobs that wait for them. Run by maintenance
-- processes while jobs wait or flows are open. Columns: ended (how many ends were counted or passed on, and to how many jobs),
-- released, cancelled, unmarked and joins (whether there are edges of upstream jobs that are not marked, and open edges, ends or
-- flows at all).
WITH flows AS MATERIALIZED (
    SELECT jobherd.resolve_flows(%(most)s::integer) AS rows
)
SELECT r.ended + f.rows AS ended, r.released, r.cancelled, EXISTS (SELECT FROM jobherd.edges e WHERE NOT e.marked) AS unmarked,
       EXISTS (SELECT FROM jobherd.edges e WHERE e.state IS NULL) OR EXISTS (SELECT FROM jobherd.ends)
       OR EXISTS (SELECT FROM jobherd.flows o WHERE o.state = 'open') AS joins
  FROM flows f CROSS JOIN LATERAL jobherd.resolve_ends(%(most)s::integer + 0 * f.rows::integer) AS r
