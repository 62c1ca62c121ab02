-- Store how far a discovery is, unless another attempt of it has finished. Run by org:github_import_discover.
-- The row stays locked until the repositories of the page are inserted, so two attempts of one discovery take
-- turns. Returns nothing if the discovery has finished.
UPDATE jobherd.forge_github_imports
   SET status = %(status)s, next_page = %(next_page)s, note = %(note)s,
       discovered_at = CASE WHEN %(status)s = 'discovered' THEN clock_timestamp() END
 WHERE id = %(id)s AND status <> 'discovered'
RETURNING id
