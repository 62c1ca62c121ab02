-- Resume a queue; true if it was paused.
SELECT jobherd.resume(%(queue)s::text) AS changed
