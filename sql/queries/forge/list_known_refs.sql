-- List the commit at which the last recorded push left each ref of a repository. Run by the command line, to
-- find pushes that no hook has reported.
SELECT DISTINCT ON (ref) ref, new_sha FROM jobherd.forge_push_events WHERE repo = %(repo)s ORDER BY ref, id DESC
