-- Answer an order, once: what was answered before stands. Run by the parent.
UPDATE jobherd.orders
   SET done_at = clock_timestamp(), answer = %(answer)s::jsonb, error = %(error)s
 WHERE id = %(order)s AND done_at IS NULL
