-- Run a schedule once, now. An unknown name is an error.
SELECT true AS changed FROM (SELECT jobherd.run_schedule(%(name)s::text, %(actor)s::text, %(reason)s::text) OFFSET 0) AS done
