-- Show one fleet command: whether it was taken, and the answer. Run by the process that waits for it.
SELECT o.id, o.supervisor, o.name, o.asked_by, o.asked_at, o.taken_at, o.done_at, o.answer, o.error
  FROM jobherd.fleet_commands o
 WHERE o.id = %(order)s
