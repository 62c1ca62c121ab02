-- Set how many jobs of a queue or a kind may run at a time; null: no limit. Returns the previous limit.
SELECT jobherd.set_limit(%(queue)s::text, %(max_running)s::integer, %(kind)s::text, %(actor)s::text) AS before
