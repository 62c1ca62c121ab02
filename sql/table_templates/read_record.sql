-- Read what the handler gets of the record: the declared expressions, over the view if there is one. Run by a
-- worker, once the row is locked.
SELECT {columns} FROM {view} WHERE {seen}.{id} = %(record)s
