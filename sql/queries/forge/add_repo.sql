-- Find the repository at a path, or add it. Run by hooks, the command line and imports. Returns its id.
WITH fresh AS (
    INSERT INTO jobherd.forge_repos (path, name) VALUES (%(path)s, %(name)s) ON CONFLICT (path) DO NOTHING RETURNING id
)
SELECT id FROM fresh UNION ALL SELECT id FROM jobherd.forge_repos WHERE path = %(path)s LIMIT 1
