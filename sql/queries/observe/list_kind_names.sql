-- List the declared kinds, for `did you mean` of the command line. Reads at most 10,000.
SELECT name FROM jobherd.kinds ORDER BY name LIMIT 10000
