-- Take what other gateways have noted about jobs of sessions: time that their workers asked for. Run by the gateway
-- that serves these sessions, before it takes back jobs whose time has expired. A row is returned once.
-- Parameters: sessions and attached (arrays of equal length).
-- Columns: session, token, job, seconds (from now).
WITH mine AS MATERIALIZED (
    SELECT e.session, e.token, e.job
      FROM unnest(%(sessions)s::bigint[], %(attached)s::integer[]) AS n (id, attached)
      JOIN jobherd.supervisors s ON s.id = n.id AND s.attached = n.attached
      JOIN jobherd.extensions e ON e.session = s.id
     ORDER BY e.session, e.token, e.job
       FOR UPDATE OF e
)
DELETE FROM jobherd.extensions e
 USING mine m
 WHERE (e.session, e.token, e.job) = (m.session, m.token, m.job)
RETURNING e.session, e.token, e.job, extract(epoch FROM e.expires_at - clock_timestamp())::double precision AS seconds
