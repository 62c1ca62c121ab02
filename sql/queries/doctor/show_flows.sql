-- Show what keeps flows and blocked jobs from going on. Columns: lag (seconds since the oldest end that is not passed on, null if
-- there is none), blocked (how many jobs are, at most 100,000), asleep (suspended jobs whose child jobs ended more than 60 s ago, at
-- most 5), stalled (ids of open flows of which no job is left, at most 5).
SELECT (SELECT extract(epoch FROM clock_timestamp() - min(e.at))::double precision FROM (SELECT at FROM jobherd.ends LIMIT 100000) AS e) AS lag,
       (SELECT count(*) FROM (SELECT FROM jobherd.blocked LIMIT 100000) AS b) AS blocked,
       array(SELECT w.job FROM (SELECT job, flow FROM jobherd.waits LIMIT 100000) AS w JOIN jobherd.flows f ON f.id = w.flow
              WHERE f.ended_at < clock_timestamp() - interval '60 s' AND EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = w.job)
              ORDER BY w.job LIMIT 5) AS asleep,
       array(SELECT f.id FROM (SELECT o.id FROM jobherd.flows o WHERE o.state = 'open' AND o.sealed LIMIT 10000) AS f
              WHERE NOT EXISTS (SELECT FROM jobherd.ends e WHERE e.flow = f.id)
                AND NOT EXISTS (SELECT FROM jobherd.ready r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                AND NOT EXISTS (SELECT FROM jobherd.parked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                AND NOT EXISTS (SELECT FROM jobherd.scheduled r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                AND NOT EXISTS (SELECT FROM jobherd.blocked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                AND NOT EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE (j.extras).flow = f.id)
                AND NOT EXISTS (SELECT FROM jobherd.flows i WHERE i.outer_flow = f.id AND i.state = 'open')
              ORDER BY f.id LIMIT 5) AS stalled
