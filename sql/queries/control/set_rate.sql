-- Set how many jobs of a queue or a kind may start in a time; null: no limit. Returns the previous rate.
SELECT jobherd.limit(%(queue)s::text, %(rate)s::text, %(burst)s::integer, %(kind)s::text, %(actor)s::text) AS before
