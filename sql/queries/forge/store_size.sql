-- Store the size of a repository at a timestamp. Run by repo:size_recalc: the last measurement wins, whatever
-- was stored. The last is the one that began last. Otherwise a slow one could overwrite what another saw after a
-- push with what it saw before. Returns nothing if it lost, or if the repository is gone.
UPDATE jobherd.forge_repos
   SET size_bytes = %(size_bytes)s, objects = %(objects)s, branches = %(branches)s, tags = %(tags)s, sized_at = %(began)s::timestamptz
 WHERE id = %(id)s AND (sized_at IS NULL OR sized_at <= %(began)s::timestamptz)
RETURNING id
