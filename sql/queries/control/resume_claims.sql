-- Resume a queue, a kind, or everything ('*' for the queue); true if it was paused.
SELECT jobherd.resume(%(queue)s::text, %(kind)s::text, %(actor)s::text, %(reason)s::text) AS changed
