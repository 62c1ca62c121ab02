-- A repository. Run by repo:size_recalc.
SELECT id, path, name, size_bytes, objects, branches, tags, sized_at FROM jobherd.forge_repos WHERE id = %(id)s
