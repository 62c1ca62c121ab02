-- Delete a job that is over; answers what became of that.
SELECT jobherd.delete(%(id)s::bigint, %(actor)s, %(reason)s) AS answer
