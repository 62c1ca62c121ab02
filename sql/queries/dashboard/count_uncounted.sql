-- Count the jobs of one kind, or (%(kind)s is null) of all, that failed or expired after the last run that filled the
-- rollup. Reads the newest %(most)s jobs by id that did not complete, as observe/list_attention does.
SELECT count(*) AS jobs
  FROM (SELECT h.kind, h.state, h.finished_at FROM jobherd.history h
         WHERE h.state <> 'completed' ORDER BY h.id DESC LIMIT %(most)s::bigint) AS h
 WHERE h.state IN ('failed', 'expired') AND (%(kind)s::text IS NULL OR h.kind = %(kind)s::text)
   AND h.finished_at >= coalesce((SELECT m.at FROM jobherd.rollup_mark m), '-infinity')
