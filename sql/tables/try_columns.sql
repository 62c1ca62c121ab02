-- Are the declared expressions, the view and the order such that the server understands them? Returns nothing. Run at start-up.
SELECT {columns} FROM {view} WHERE false
