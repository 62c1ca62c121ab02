-- Find what became of the children of a running job. Returns no row if the claim is lost. Columns: state (of their flow, null if it
-- was deleted), bytes (of all results), results (an array of [item, result], null if there are more than %(most)s bytes) and failures
-- (of up to %(shown)s children that have not completed: an array of objects). While the flow is open, only the state.
--
-- The results are those of `results`: a member's row in the history may be gone.
SELECT f.state, r.bytes, r.results::text AS results, x.failures::text AS failures
  FROM jobherd.running c
       LEFT JOIN jobherd.flows f ON f.id = %(flow)s
       LEFT JOIN LATERAL (
           SELECT sum(octet_length(s.result::text)) AS bytes,
                  CASE WHEN coalesce(sum(octet_length(s.result::text)), 0) <= %(most)s::bigint
                       THEN '[' || coalesce(string_agg('[' || s.item || ',' || coalesce(s.result::text, 'null') || ']', ','), '') || ']' END AS results
             FROM jobherd.results s WHERE s.flow = f.id) AS r ON f.state <> 'open'
       LEFT JOIN LATERAL (
           SELECT json_agg(json_build_object('item', h.item, 'job', h.id, 'kind', h.kind, 'state', h.state, 'code', h.error_code,
                                             'error', left(h.error, 500)) ORDER BY h.item) AS failures
             FROM (SELECT DISTINCT ON (p.id) (p.extras).item, p.id, p.kind, p.state, p.error_code, p.error FROM jobherd.history p
                    WHERE (p.extras).flow = f.id AND (p.extras).flow > 0 AND p.state <> 'completed'
                    ORDER BY p.id, p.finished_at DESC LIMIT %(shown)s::integer) AS h) AS x ON f.state NOT IN ('open', 'completed')
 WHERE c.child = %(child)s AND c.token = %(token)s AND EXISTS (SELECT FROM unnest(c.jobs) AS j WHERE j.id = %(job)s)
