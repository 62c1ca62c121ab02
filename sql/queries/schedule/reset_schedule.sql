-- Return a schedule to what its handler declares. An unknown name is an error.
SELECT true AS changed FROM (SELECT jobherd.reset_schedule(%(name)s::text, %(actor)s::text, %(reason)s::text) OFFSET 0) AS done
