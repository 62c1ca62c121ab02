-- Store the result of importing a repository, unless it is already imported. Run by org:github_import_repo.
-- Returns nothing if it was.
UPDATE jobherd.forge_github_import_repos
   SET status = %(status)s, note = %(note)s, path = %(path)s,
       imported_at = CASE WHEN %(status)s = 'imported' THEN clock_timestamp() END
 WHERE id = %(id)s AND status <> 'imported'
RETURNING id
