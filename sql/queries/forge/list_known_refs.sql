-- Where the last recorded push left each ref of a repository. Run by the command line, to find what no hook has told.
SELECT DISTINCT ON (ref) ref, new_sha FROM jobherd.forge_push_events WHERE repo = %(repo)s ORDER BY ref, id DESC
