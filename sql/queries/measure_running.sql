-- Running jobs by queue, those claimed and not yet started included, and the age of the oldest claim. Run by a web child for the
-- metrics. The table holds one row for each batch in hand; only a fleet gone wild meets the limit of %(most)s batches.
WITH held AS MATERIALIZED (
    SELECT r.queue, cardinality(r.jobs) AS jobs, r.claimed_at FROM jobherd.running r ORDER BY r.child, r.token LIMIT %(most)s::bigint
)
SELECT h.queue, sum(h.jobs)::bigint AS jobs, (SELECT count(*) FROM held) >= %(most)s::bigint AS capped,
       greatest(0, extract(epoch FROM clock_timestamp() - min(h.claimed_at)))::double precision AS oldest
  FROM held h
 GROUP BY h.queue
 ORDER BY h.queue
 LIMIT %(queues)s::integer
