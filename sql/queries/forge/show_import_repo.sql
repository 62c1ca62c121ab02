-- Show a repository to import. Run by org:github_import_repo.
SELECT r.id, r.name, r.clone_url, r.status, r.path, i.org
  FROM jobherd.forge_github_import_repos r JOIN jobherd.forge_github_imports i ON i.id = r.import
 WHERE r.id = %(id)s
