-- Change the priority of a waiting job. Returns where it is now.
SELECT jobherd.reprioritize(%(id)s::bigint, %(priority)s::integer, %(actor)s, %(reason)s) AS answer
