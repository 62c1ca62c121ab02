-- Set how many jobs of each partition of a queue may run at a time; null: no limit. Returns the previous limit.
SELECT jobherd.limit_each(%(queue)s::text, %(max_running)s::integer, %(strict)s::boolean, %(actor)s::text) AS before
