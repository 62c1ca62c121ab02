-- Reschedule a waiting job: to that timestamp, else so many seconds from now. Returns where it is now.
SELECT jobherd.reschedule(%(id)s::bigint, coalesce(%(run_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::double precision)),
                          %(actor)s, %(reason)s) AS answer
