-- Store a repository to import. Run by org:github_import_discover. Returns its id if it is new: only then it
-- gets a job.
INSERT INTO jobherd.forge_github_import_repos (import, name, clone_url, status, note)
VALUES (%(import)s, %(name)s, %(clone_url)s, %(status)s, %(note)s)
ON CONFLICT (import, name) DO NOTHING
RETURNING id
