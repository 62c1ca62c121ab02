-- Delete the waits of jobs that do not wait any more, in one page of jobs, and check the others again. Run by maintenance
-- processes. Parameters: after (the last job of the page before, or null), most (jobs of a page).
-- Columns: last (of this page; null: there are no more), deleted.
SELECT last, deleted FROM jobherd.sweep_waits(%(after)s::bigint, %(most)s::integer)
