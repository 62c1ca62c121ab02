-- The repository at a path, added if it is new. Run by hooks, the command line and imports. Returns its id.
WITH fresh AS (
    INSERT INTO jobherd.forge_repos (path, name) VALUES (%(path)s, %(name)s) ON CONFLICT (path) DO NOTHING RETURNING id
)
SELECT id FROM fresh UNION ALL SELECT id FROM jobherd.forge_repos WHERE path = %(path)s LIMIT 1
