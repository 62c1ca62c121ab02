-- List the nodes of a flow, in their order. Run on users' request. Columns: node, kind, runs_on (null, or the end of the
-- flow after which it runs), waits_for (JSON: names and ids), job (of a node with one job; an inner flow has the id of its node), states
-- (JSON: how many jobs of the node are in each state), error_code and error of a job, before those of canceled jobs, ended_at (of
-- the last job that has ended, as Unix time).
WITH nodes AS MATERIALIZED (
    SELECT n.place, n.node ->> 'node' AS node, n.node ->> 'kind' AS kind, n.node ->> 'on' AS runs_on, n.node -> 'after' AS waits_for, (n.node ->> 'job')::bigint AS job
      FROM jobherd.flows f CROSS JOIN LATERAL jsonb_array_elements(f.nodes) WITH ORDINALITY AS n (node, place)
     WHERE f.id = %(id)s::bigint
), members AS MATERIALIZED (
    SELECT m.flow, m.node, m.state, count(*) AS jobs, max(m.ended) AS ended, min(m.code) AS code, min(left(m.error, 300)) AS error
      FROM (SELECT (extras).flow AS flow, (extras).node AS node, 'ready' AS state, NULL AS code, NULL AS error, NULL::timestamptz AS ended FROM jobherd.waiting
             WHERE (extras).flow > 0 AND (extras).flow = ANY (SELECT job FROM nodes UNION ALL SELECT %(id)s::bigint)
            UNION ALL
            SELECT (extras).flow, (extras).node, CASE WHEN attempts > 0 THEN 'retrying' ELSE 'scheduled' END, last_error ->> 'code', last_error ->> 'message', NULL FROM jobherd.scheduled
             WHERE (extras).flow > 0 AND (extras).flow = ANY (SELECT job FROM nodes UNION ALL SELECT %(id)s::bigint)
            UNION ALL
            SELECT (extras).flow, (extras).node, 'blocked', NULL, NULL, NULL FROM jobherd.blocked
             WHERE (extras).flow > 0 AND (extras).flow = ANY (SELECT job FROM nodes UNION ALL SELECT %(id)s::bigint)
            UNION ALL
            SELECT (j.extras).flow, (j.extras).node, 'running', NULL, NULL, NULL FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE (j.extras).flow > 0 AND (j.extras).flow = ANY (SELECT job FROM nodes UNION ALL SELECT %(id)s::bigint)
            UNION ALL
            SELECT (extras).flow, (extras).node, state, error_code, error, finished_at FROM jobherd.history
             WHERE (extras).flow > 0 AND (extras).flow = ANY (SELECT job FROM nodes UNION ALL SELECT %(id)s::bigint)) AS m
     GROUP BY m.flow, m.node, m.state
), outside AS MATERIALIZED (
    SELECT n.node, j.state, j.error_code, left(j.error, 300) AS error FROM nodes n JOIN jobherd.jobs j ON j.id = n.job WHERE n.runs_on IS NOT NULL
)
SELECT n.node, n.kind, n.runs_on, n.waits_for, n.job,
       coalesce((SELECT jsonb_object_agg(m.state, m.jobs) FROM members m
                  WHERE m.node = n.node AND (m.flow = n.job OR m.flow = %(id)s::bigint)),
                (SELECT jsonb_build_object(o.state, 1) FROM outside o WHERE o.node = n.node), '{}') AS states,
       coalesce((SELECT m.code FROM members m WHERE m.node = n.node AND m.code IS NOT NULL ORDER BY m.state = 'cancelled' LIMIT 1), (SELECT o.error_code FROM outside o WHERE o.node = n.node)) AS error_code,
       coalesce((SELECT m.error FROM members m WHERE m.node = n.node AND m.error IS NOT NULL ORDER BY m.state = 'cancelled' LIMIT 1), (SELECT o.error FROM outside o WHERE o.node = n.node)) AS error,
       (SELECT extract(epoch FROM max(m.ended))::double precision FROM members m WHERE m.node = n.node AND (m.flow = n.job OR m.flow = %(id)s::bigint)) AS ended_at
  FROM nodes n
 ORDER BY n.place
