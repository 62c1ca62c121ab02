-- What earlier pushes to a repository left its refs at: what they reach was theirs to bring. Run by push:process. Only the latest
-- 20,000 are looked at, git is given them all; a commit that slips through is already recorded and stays as it is.
SELECT DISTINCT new_sha AS sha
  FROM (SELECT new_sha FROM jobherd.forge_push_events WHERE repo = %(repo)s AND id < %(id)s ORDER BY id DESC LIMIT 20000) AS latest
 WHERE new_sha IS NOT NULL
