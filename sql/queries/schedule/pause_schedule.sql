-- Pause a schedule, until it is resumed, until a time, or for so many seconds. An unknown name is an error.
SELECT true AS changed
  FROM (SELECT jobherd.pause_schedule(
                   %(name)s::text, %(reason)s::text,
                   coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::double precision)),
                   %(actor)s::text) OFFSET 0) AS done
