-- Cancel the children of canceled jobs that the end of the job could not reach, in one page of parents. Run by maintenance
-- processes. Parameters: after (the last parent of the page before, or null), most (parents of a page).
-- Columns: last (of this page; null: there are no more), stopped (flows).
SELECT last, stopped FROM jobherd.sweep_children(%(after)s::bigint, %(most)s::integer)
