-- Tell whoever sleeps that there may be work in a queue. Run by a child that leaves a slot of a cap to others.
SELECT jobherd.tell_sleepers(%(queue)s::text)
