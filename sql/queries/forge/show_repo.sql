-- Show a repository, and the current time. Run by repo:size_recalc before it measures.
SELECT id, path, name, size_bytes, objects, branches, tags, sized_at, clock_timestamp() AS began FROM jobherd.forge_repos WHERE id = %(id)s
