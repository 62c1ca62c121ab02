-- Find the nodes that a member of a flow waited for; for a job that runs after a flow, all its nodes. Run by its worker when the
-- handler asks for a result. Parameters: job, flow (that its extras name), node (null: no result is wanted). Columns: node,
-- upstream (its job, or the flow of its jobs), state, is_many (it has a job for each item), is_stored and result (of `node`).
--
-- A job of a node with many jobs names the flow of these. That flow has the id of the node, which has the edges.
WITH mine AS MATERIALIZED (
    SELECT e.upstream, e.flow, e.state, e.argument IS NOT NULL AS is_copied, e.result
      FROM jobherd.edges e
     WHERE e.downstream IN (%(job)s::bigint, %(flow)s::bigint) AND e.flow IS NOT NULL
), names AS MATERIALIZED (
    SELECT f.id AS flow, (n.node ->> 'job')::bigint AS job, n.node ->> 'node' AS node
      FROM jobherd.flows f CROSS JOIN LATERAL jsonb_array_elements(f.nodes) AS n (node)
     WHERE f.id IN (SELECT flow FROM mine) AND n.node ? 'job' AND NOT n.node ? 'on'
), sources AS (
    SELECT m.upstream, m.flow, m.state, m.is_copied, m.result FROM mine m WHERE m.upstream <> m.flow
    UNION ALL
    SELECT n.job, n.flow, NULL, false, NULL FROM names n WHERE n.flow IN (SELECT m.upstream FROM mine m)
), found AS (
    SELECT coalesce(n.node, h.node, substr(i.name, length(o.name) + 2)) AS node, s.upstream, coalesce(s.state, h.state, i.state, 'unknown') AS state,
           i.id IS NOT NULL AS is_many, s.is_copied, s.result AS copy, h.id IS NOT NULL AS is_past, h.result AS original
      FROM sources s
      JOIN jobherd.flows o ON o.id = s.flow
      LEFT JOIN names n ON n.flow = s.flow AND n.job = s.upstream
      LEFT JOIN jobherd.flows i ON i.id = s.upstream AND i.outer_flow = s.flow
      LEFT JOIN LATERAL (SELECT h.id, (h.extras).node AS node, h.state, h.result FROM jobherd.history h
                          WHERE h.id = s.upstream AND (h.extras).flow = s.flow ORDER BY h.finished_at DESC LIMIT 1) AS h ON true
)
SELECT f.node, f.upstream, f.state, f.is_many, f.is_copied OR f.is_past AS is_stored,
       CASE WHEN f.node = %(node)s::text AND NOT f.is_many THEN CASE WHEN f.is_copied THEN f.copy ELSE f.original END::text END AS result
  FROM found f
 WHERE f.node IS NOT NULL
 ORDER BY f.upstream
