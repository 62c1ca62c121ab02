-- Count the running jobs by queue, including those claimed and not yet started, and the age of the oldest claim.
-- Run by a web process for the metrics. The table holds one row for each claimed batch, so only a fleet out of
-- control meets the limit of %(most)s batches. Of more than %(queues)s queues besides those in %(names)s, the
-- last ones are summed under a null name.
WITH held AS MATERIALIZED (
    SELECT r.queue, cardinality(r.jobs) AS jobs, r.claimed_at FROM jobherd.running r ORDER BY r.child, r.token LIMIT %(most)s::bigint
), found AS (
    SELECT h.queue, sum(h.jobs) AS jobs, min(h.claimed_at) AS first,
           row_number() OVER (ORDER BY h.queue = ANY (%(names)s::text[]) DESC, h.queue) AS place
      FROM held h
     GROUP BY h.queue
)
SELECT CASE WHEN f.place <= %(queues)s::integer + cardinality(%(names)s::text[]) THEN f.queue END AS queue, sum(f.jobs)::bigint AS jobs,
       (SELECT count(*) FROM held) >= %(most)s::bigint AS capped,
       greatest(0, extract(epoch FROM clock_timestamp() - min(f.first)))::double precision AS oldest
  FROM found f
 GROUP BY 1
