-- Delete the keys of unique jobs that do not count any more, in one page of keys. Run by maintenance processes.
-- Parameters: after (in hexadecimal, the last key of the page before, or null), most (keys of a page).
-- Columns: last (of this page; null: there are no more keys), deleted (their number).
SELECT encode(last, 'hex') AS last, deleted FROM jobherd.sweep_keys(decode(%(after)s::text, 'hex'), %(most)s::integer)
