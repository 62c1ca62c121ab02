-- Record refs of pushes, in order. Run by hooks, which enqueue a push:process for each in the same transaction.
-- A ref that is already recorded changes nothing and returns no row: a hook that was killed after its commit
-- reports the push again.
INSERT INTO jobherd.forge_push_events (repo, push, ref, old_sha, new_sha)
SELECT %(repo)s, p.push, p.ref, p.old_sha, p.new_sha
  FROM unnest(%(pushes)s::uuid[], %(refs)s::text[], %(olds)s::text[], %(news)s::text[]) WITH ORDINALITY
    AS p (push, ref, old_sha, new_sha, place)
 ORDER BY p.place
ON CONFLICT (push, ref) DO NOTHING
RETURNING id
