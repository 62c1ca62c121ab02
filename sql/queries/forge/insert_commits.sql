-- Record commits. Run by push:process, in batches, each on its own. A commit that is already recorded keeps the
-- push that brought it.
INSERT INTO jobherd.forge_commits (repo, sha, push_event, author, email, authored_at, subject, merge, files, binary_files, added, deleted,
                                   languages)
SELECT %(repo)s, c.sha, %(push_event)s, c.author, c.email,
       -- A commit may claim any second: one beyond the range of the calendar is stored as null.
       CASE WHEN c.authored BETWEEN 0 AND 253402300799 THEN to_timestamp(c.authored) END,
       c.subject, c.merge, c.files, c.binary_files, c.added, c.deleted, c.languages::jsonb
  FROM unnest(%(shas)s::text[], %(authors)s::text[], %(emails)s::text[], %(authored)s::bigint[], %(subjects)s::text[], %(merges)s::boolean[],
              %(files)s::integer[], %(binary_files)s::integer[], %(added)s::bigint[], %(deleted)s::bigint[], %(languages)s::text[])
    AS c (sha, author, email, authored, subject, merge, files, binary_files, added, deleted, languages)
 ORDER BY c.sha  -- one lock order: two pushes that bring the same commits at once would deadlock otherwise
ON CONFLICT (repo, sha) DO NOTHING
