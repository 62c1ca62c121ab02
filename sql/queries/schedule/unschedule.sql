-- Delete a schedule; true if there was one.
SELECT jobherd.unschedule(%(name)s::text, %(actor)s::text, %(reason)s::text) AS changed
