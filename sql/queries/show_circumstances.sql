-- What decides about one job, live or past: the gates that stand before it, who could run it, what is before it, and where it runs. Run by
-- people. Jobs before it are counted up to %(most)s; its own row is found by its id.
SELECT clock_timestamp() AS asked_at, j.*,
       (SELECT jsonb_agg(jsonb_build_object('scope', g.scope, 'name', g.name, 'paused_at', g.paused_at, 'paused_by', g.paused_by,
                                            'reason', g.reason, 'resume_at', g.resume_at, 'max_running', g.max_running,
                                            'running', CASE WHEN g.max_running IS NOT NULL
                                                            THEN jobherd.count_running(g.scope, g.name, g.capped_at) END)
                         ORDER BY g.scope)
          FROM jobherd.gates g
         WHERE (g.scope, g.name) IN (('queue', j.queue), ('kind', j.kind), ('all', '*'))) AS gates,
       EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = j.kind) AS declared,
       (SELECT r.alone FROM jobherd.ready r WHERE r.id = j.id) AS alone,
       (SELECT count(*) FROM (SELECT FROM jobherd.ready r WHERE r.queue = j.queue AND (r.priority, r.id) < (j.priority, j.id) LIMIT %(most)s) AS before)
           AS ahead,
       EXISTS (SELECT FROM jobherd.running r WHERE r.queue = j.queue) AS queue_runs,
       fleet.workers, fleet.idle, held.host, held.pid, held.slot, held.lease_left, held.neighbours, held.cancelled
  FROM jobherd.jobs j
       CROSS JOIN LATERAL (
           SELECT count(*) AS workers, count(*) FILTER (WHERE NOT EXISTS (SELECT FROM jobherd.running r WHERE r.child = c.id)) AS idle
             FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
            WHERE c.kind = 'worker' AND s.lease_until > clock_timestamp()) AS fleet
       LEFT JOIN LATERAL (
           SELECT s.host, c.pid, c.slot, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS lease_left,
                  cardinality(r.jobs) - 1 AS neighbours, j.id = ANY (r.cancelled) AS cancelled
             FROM jobherd.running r
                  LEFT JOIN jobherd.children c ON c.id = r.child
                  LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor
            WHERE r.token = j.token) AS held ON j.state = 'running'
 WHERE j.id = %(id)s
