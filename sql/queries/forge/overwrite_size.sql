-- Write how big a repository was at a moment. Run by repo:size_recalc: the last one wins, whatever was there; the last is the one that
-- began last, or a slow run would put what it saw before a push over what another saw after it. Returns nothing if it lost, or if the
-- repository is gone.
UPDATE jobherd.forge_repos
   SET size_bytes = %(size_bytes)s, objects = %(objects)s, branches = %(branches)s, tags = %(tags)s, sized_at = %(began)s::timestamptz
 WHERE id = %(id)s AND (sized_at IS NULL OR sized_at <= %(began)s::timestamptz)
RETURNING id
