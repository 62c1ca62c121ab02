-- List the jobs that did not complete in the last %(seconds)s seconds, by kind and code, the largest group
-- first, of one kind or (%(kind)s is null) of all. Reads the rollup, and for each group the error of one of its
-- jobs if that is still stored. For the kinds %(hidden)s it returns the payload too: its values must be removed
-- from the error.
WITH failures AS MATERIALIZED (
    SELECT f.kind, f.state, f.code, sum(f.jobs)::bigint AS jobs, max(f.last_at) AS last_at, max(f.last_job) AS last_job
      FROM jobherd.rollup_failures f
     WHERE f.at >= now() - make_interval(secs => %(seconds)s::integer) AND f.state <> 'cancelled'
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
