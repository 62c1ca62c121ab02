-- Notify idle workers that there may be work in a queue, or in any (*). Run by a worker that leaves a slot of a
-- concurrency limit to others.
SELECT jobherd.tell_sleepers(%(queue)s::text)
