-- Make the partitions of the days ahead and drop those whose day is past. Run by keepers.
SELECT made, dropped FROM jobherd.keep_partitions(%(ahead)s::integer)
