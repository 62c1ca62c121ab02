-- Give a waiting job another priority; answers where it is now.
SELECT jobherd.reprioritize(%(id)s::bigint, %(priority)s::integer, %(actor)s, %(reason)s) AS answer
