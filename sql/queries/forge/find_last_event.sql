-- The latest push event. Run by the demo, to know what comes after.
SELECT coalesce(max(id), 0) AS id FROM jobherd.forge_push_events WHERE repo = %(repo)s
