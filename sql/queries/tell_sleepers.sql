-- Tell whoever sleeps that there may be work in a queue, or in any (*). Run by a child that leaves a slot of a cap to others.
SELECT jobherd.tell_sleepers(%(queue)s::text)
