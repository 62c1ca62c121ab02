-- Count what has ended since the last look into the rollup (migrations/0021_rollup.sql), at most %(span)s seconds of it at once. Run by
-- keepers. Writes nothing if nothing has ended. What ended longer than %(lag)s seconds before it was committed is found by its job's id.
SELECT jobs, behind FROM jobherd.count_past(make_interval(secs => %(span)s::double precision), make_interval(secs => %(lag)s::double precision))
