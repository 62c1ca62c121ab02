-- Check that the server accepts the declared expressions, the view and the order. Returns nothing. Run at
-- start-up.
SELECT {columns} FROM {view} WHERE false
