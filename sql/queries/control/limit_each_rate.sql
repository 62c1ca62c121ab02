-- Set how many jobs of each partition of a queue may start in a time; null: no limit. Returns the previous rate.
SELECT jobherd.limit_each_rate(%(queue)s::text, %(rate)s::text, %(burst)s::integer, %(actor)s::text) AS before
