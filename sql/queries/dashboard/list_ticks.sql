-- List the last %(most)s instants of a schedule that were decided, latest first, with the state of their jobs.
SELECT t.at, t.since, t.decided, t.job, t.missed, t.because, t.noted_at, j.state, j.error_code
  FROM (SELECT t.* FROM jobherd.ticks t WHERE t.schedule = %(name)s::text ORDER BY t.at DESC LIMIT %(most)s::integer) AS t
       LEFT JOIN LATERAL (SELECT j.state, j.error_code FROM jobherd.jobs j WHERE j.id = t.job LIMIT 1) AS j ON true
 ORDER BY t.at DESC
