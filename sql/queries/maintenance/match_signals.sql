-- Make suspended jobs ready for which there is a signal. Run by maintenance processes. Returns how many, whether to look again
-- at once, and whether jobs wait.
SELECT m.woken, m.again, EXISTS (SELECT FROM jobherd.waits) AS waits FROM jobherd.match_signals(%(most)s::integer) AS m
