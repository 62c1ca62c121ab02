-- Make partitions of the days ahead, %(most)s at the most, or drop those whose day is past once none is missing. Run by keepers, again
-- and again while as many are made: nobody settles meanwhile.
SELECT made, dropped FROM jobherd.keep_partitions(%(ahead)s::integer, %(most)s::integer)
