-- Count the repositories that a discovery has found so far. Run by org:github_import_discover.
SELECT count(*) AS repos, count(*) FILTER (WHERE status = 'refused') AS refused FROM jobherd.forge_github_import_repos WHERE import = %(import)s
