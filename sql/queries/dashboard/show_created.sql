-- Return when the first finished job from %(id)s on was created: the dashboard shows how far back a search went.
SELECT h.created_at FROM jobherd.history h WHERE h.id >= %(id)s::bigint ORDER BY h.id LIMIT 1
