-- What did not complete in the last %(seconds)s seconds, by kind and code, most of it first, of one kind or (%(kind)s is null) of all: from the
-- rollup, and for each what one of these jobs says of it, if it is still there; of %(hidden)s kinds also its payload, to leave out what is in it.
WITH failures AS MATERIALIZED (
    SELECT f.kind, f.state, f.code, sum(f.jobs)::bigint AS jobs, max(f.last_at) AS last_at, max(f.last_job) AS last_job
      FROM jobherd.rollup_failures f
     WHERE f.at >= clock_timestamp() - make_interval(secs => %(seconds)s::integer) AND f.state <> 'cancelled'
       AND (%(kind)s::text IS NULL OR f.kind = %(kind)s::text)
     GROUP BY f.kind, f.state, f.code
     ORDER BY jobs DESC, last_at DESC
     LIMIT %(most)s::integer
)
SELECT f.kind, f.state, f.code, f.jobs, f.last_at, f.last_job, h.error, h.payload
  FROM failures f
  LEFT JOIN LATERAL (
       SELECT left(h.error, 5000) AS error, CASE WHEN f.kind = ANY (%(hidden)s::text[]) THEN h.payload END AS payload
         FROM jobherd.history h WHERE h.id = f.last_job
        ORDER BY h.finished_at DESC LIMIT 1) AS h ON true
 ORDER BY f.jobs DESC, f.last_at DESC
