-- Write how big a repository is. Run by repo:size_recalc: the last one wins, whatever was there.
UPDATE jobherd.forge_repos
   SET size_bytes = %(size_bytes)s, objects = %(objects)s, branches = %(branches)s, tags = %(tags)s, sized_at = clock_timestamp()
 WHERE id = %(id)s
RETURNING id
