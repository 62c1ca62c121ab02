-- Store which job imports a repository. In the transaction that created both.
UPDATE jobherd.forge_github_import_repos SET job = %(job)s WHERE id = %(id)s
