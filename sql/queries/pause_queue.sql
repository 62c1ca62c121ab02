-- Pause a queue; true if it was not paused before.
SELECT jobherd.pause(%(queue)s::text, %(reason)s::text) AS changed
