-- Give a waiting job another time: that one, else so many seconds from now; answers where it is now.
SELECT jobherd.reschedule(%(id)s::bigint, coalesce(%(run_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::double precision)),
                          %(actor)s, %(reason)s) AS answer
