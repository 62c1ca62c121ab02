-- Let no more than so many jobs of a queue or a kind run at a time; null: as many as there are children. Returns the cap there was.
SELECT jobherd.set_cap(%(queue)s::text, %(max_running)s::integer, %(kind)s::text, %(actor)s::text) AS before
