-- Delete a finished job. Returns what happened.
SELECT jobherd.delete(%(id)s::bigint, %(actor)s, %(reason)s) AS answer
