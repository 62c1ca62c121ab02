-- Create partitions for the days ahead, at most %(most)s, or drop those whose day is past once none is missing.
-- Run by maintenance processes, repeatedly while that many are created: no outcome can be recorded meanwhile.
SELECT made, dropped FROM jobherd.keep_partitions(%(ahead)s::integer, %(most)s::integer)
