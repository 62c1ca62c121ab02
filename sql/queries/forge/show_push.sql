-- Show a push event and where its repository is. Run by push:process.
SELECT e.id, e.repo, e.ref, e.old_sha, e.new_sha, e.processed_at, r.path
  FROM jobherd.forge_push_events e JOIN jobherd.forge_repos r ON r.id = e.repo
 WHERE e.id = %(id)s
