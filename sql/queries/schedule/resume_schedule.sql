-- Resume a schedule; true if it was paused. An unknown name is an error.
SELECT jobherd.resume_schedule(%(name)s::text, %(actor)s::text, %(reason)s::text) AS changed
