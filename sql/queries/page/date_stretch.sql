-- When the first job of the past from %(id)s on was made: to say in words how far a look went back.
SELECT h.created_at FROM jobherd.history h WHERE h.id >= %(id)s::bigint ORDER BY h.id LIMIT 1
