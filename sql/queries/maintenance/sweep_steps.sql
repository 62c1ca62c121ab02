-- Delete the steps of jobs that no longer exist, in one page of jobs. Run by maintenance processes.
-- Parameters: after (the last job of the page before, or null), most (jobs of a page).
-- Columns: last (of this page; null: there are no more), deleted (the number of steps).
SELECT last, deleted FROM jobherd.sweep_steps(%(after)s::bigint, %(most)s::integer)
