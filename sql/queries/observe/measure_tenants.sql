-- Count the jobs of the tenants by state: the %(tenants)s tenants with the most, the others summed under a null
-- name. Run by a web process: for the dashboard's page of queues, and for the metrics if these show tenants. No more
-- than %(most)s waiting jobs of each table are read, so a tenant may have more than is returned.
WITH seen AS MATERIALIZED (
    SELECT 'ready' AS state, (r.extras).tenant AS tenant FROM (SELECT extras FROM jobherd.waiting LIMIT %(most)s::bigint) AS r
    UNION ALL
    SELECT 'scheduled', (s.extras).tenant FROM (SELECT extras FROM jobherd.scheduled LIMIT %(most)s::bigint) AS s
    UNION ALL
    SELECT 'running', (j.extras).tenant FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
), chosen AS MATERIALIZED (
    SELECT tenant FROM seen WHERE tenant IS NOT NULL GROUP BY tenant ORDER BY count(*) DESC, tenant LIMIT %(tenants)s::integer
)
SELECT c.tenant, s.state, count(*) AS jobs
  FROM seen s LEFT JOIN chosen c ON c.tenant = s.tenant
 WHERE s.tenant IS NOT NULL
 GROUP BY c.tenant, s.state
