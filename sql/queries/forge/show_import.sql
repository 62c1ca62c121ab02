-- Show an import. Run by org:github_import_discover.
SELECT id, org, status, next_page, note FROM jobherd.forge_github_imports WHERE id = %(id)s
