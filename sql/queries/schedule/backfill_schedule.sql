-- Run past instants of a schedule that have no job. Without %(to_at)s: until now. An unknown name is an error.
SELECT true AS changed
  FROM (SELECT jobherd.backfill_schedule(%(name)s::text, %(from_at)s::timestamptz,
                                         coalesce(%(to_at)s::timestamptz, clock_timestamp()), %(parallel)s::integer,
                                         %(actor)s::text, %(reason)s::text) OFFSET 0) AS done
