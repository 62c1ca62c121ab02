-- What a running job was asked (its stack, or a profile) and what was answered, as long as the order is kept. Run by the page.
SELECT o.name, o.done_at, o.answer, o.error
  FROM jobherd.orders o
 WHERE o.id = %(order)s AND o.name IN ('stack', 'profile') AND o.arguments ->> 'job' = %(job)s::text
