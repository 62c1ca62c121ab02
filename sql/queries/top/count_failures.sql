-- Count the jobs that failed, and the attempts that failed and were followed by another, in the last hour. Run by `jobherd top`.
-- Reads only the rollup.
SELECT coalesce(sum(r.failed), 0)::bigint AS failed, coalesce(sum(r.retried), 0)::bigint AS retried
  FROM jobherd.rollup r
 WHERE r.at >= clock_timestamp() - interval '1 hour'
