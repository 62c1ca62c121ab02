-- Check that the server accepts the declared order, over the table. Returns nothing. Run at start-up.
SELECT FROM {table} AS {me} WHERE false ORDER BY {order_by}
