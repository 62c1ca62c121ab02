-- Pass up to %(most)s ends of jobs on to the jobs that wait for them. Run by maintenance processes while edges or ends exist.
-- Columns: ended (how many were passed on), released, cancelled, unmarked and joins (whether there are edges of
-- upstream jobs that are not marked, and edges or ends at all).
SELECT r.ended, r.released, r.cancelled, EXISTS (SELECT FROM jobherd.edges e WHERE NOT e.marked) AS unmarked,
       EXISTS (SELECT FROM jobherd.edges) OR EXISTS (SELECT FROM jobherd.ends) AS joins
  FROM jobherd.resolve_ends(%(most)s::integer) AS r
