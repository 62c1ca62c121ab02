-- Find the latest push event. Run by the demo, to know which events come later.
SELECT coalesce(max(id), 0) AS id FROM jobherd.forge_push_events WHERE repo = %(repo)s
