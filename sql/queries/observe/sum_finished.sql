-- Count the jobs that have finished and those that completed, and return how many seconds after a timestamp the
-- last one finished. Run by `jobherd bench`.
SELECT count(*) AS ended, count(*) FILTER (WHERE state = 'completed') AS completed,
       extract(epoch FROM max(finished_at) - %(since)s::timestamptz)::double precision AS took
  FROM jobherd.history
 WHERE finished_at >= %(since)s::timestamptz
