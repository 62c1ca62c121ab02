-- One order: whether it was taken, and what was answered. Run by whoever waits for it.
SELECT o.id, o.supervisor, o.name, o.asked_by, o.asked_at, o.taken_at, o.done_at, o.answer, o.error
  FROM jobherd.orders o
 WHERE o.id = %(order)s
