-- Add the jobs that finished since the last run to the rollup (schema/26_rollup.sql), at most %(span)s
-- seconds of them at once. Run by maintenance processes. Writes nothing if no job has finished. A job that
-- finished more than %(lag)s seconds before its commit is found by its id.
SELECT jobs, behind FROM jobherd.count_past(make_interval(secs => %(span)s::double precision), make_interval(secs => %(lag)s::double precision))
