-- Store which job discovers an import. In the transaction that created both.
UPDATE jobherd.forge_github_imports SET job = %(job)s WHERE id = %(id)s
