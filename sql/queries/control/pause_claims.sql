-- Pause a queue, a kind, or everything ('*' for the queue), until it is resumed or for so many seconds; true if
-- it was not paused before.
SELECT jobherd.pause(%(queue)s::text, %(reason)s::text, %(kind)s::text,
                     coalesce(%(resume_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::double precision)),
                     %(actor)s::text) AS changed
