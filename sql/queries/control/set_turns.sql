-- Let the partitions of a queue take turns, with these weights in addition to those that it has; or end that. Returns the
-- previous weights; null: they took no turns.
SELECT jobherd.fair(%(queue)s::text, %(weights)s::jsonb, %(off)s::boolean, %(actor)s::text) AS before
