-- List the commits at which earlier pushes to a repository left its refs: earlier pushes account for all that
-- these reach. Run by push:process. Only the latest 20,000 are read, and git gets all of them. A commit that is
-- missed by that is already recorded and stays as it is.
SELECT DISTINCT new_sha AS sha
  FROM (SELECT new_sha FROM jobherd.forge_push_events WHERE repo = %(repo)s AND id < %(id)s ORDER BY id DESC LIMIT 20000) AS latest
 WHERE new_sha IS NOT NULL
