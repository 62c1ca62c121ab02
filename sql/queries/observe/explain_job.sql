-- Explain one job, live or finished: its pauses and limits, the workers that could run it, the jobs before it,
-- where it runs, the instant of a schedule that it is, the flow of which it is a member, the first of the jobs that it waits
-- for, and the signal or the child jobs that it waits for. Run on users' request. Jobs before it are counted up to %(most)s. Its own row is found by
-- its id. `one` and `stored` are planned alone: with a join, each of the days of the history is planned with each other table.
--
-- serving is how the workers choose between the queues, by the facts of one supervisor that serves this queue. A
-- supervisor whose workers take turns has precedence: they reach the job first. Without facts, which come some
-- seconds after a start, the default is assumed.
-- elsewhere checks the first 100 other queues that hold jobs: strictly before are those of a lower tier, and in
-- strict order the more urgent jobs in a queue of the same rank. Queues of the same tier that take turns share
-- the workers.
WITH RECURSIVE one AS MATERIALIZED (
    SELECT * FROM jobherd.jobs WHERE id = %(id)s
), stored AS MATERIALIZED (
    SELECT extras FROM jobherd.waiting WHERE id = %(id)s
    UNION ALL SELECT extras FROM jobherd.scheduled WHERE id = %(id)s
    UNION ALL SELECT extras FROM jobherd.blocked WHERE id = %(id)s
    UNION ALL SELECT o.extras FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS o
               WHERE r.token = (SELECT one.token FROM one) AND o.id = %(id)s
    UNION ALL SELECT extras FROM jobherd.history WHERE id = %(id)s
), head AS (
    (SELECT queue FROM jobherd.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT after.queue
      FROM head h CROSS JOIN LATERAL (SELECT r.queue FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue LIMIT 1) AS after
)
SELECT clock_timestamp() AS asked_at, j.*,
       (SELECT jsonb_agg(jsonb_build_object('scope', g.scope, 'name', g.name, 'paused_at', g.paused_at, 'paused_by', g.paused_by,
                                            'reason', g.reason, 'resume_at', g.resume_at, 'max_running', g.max_running,
                                            'running', CASE WHEN g.max_running IS NOT NULL
                                                            THEN jobherd.count_running(g.scope, g.name, g.limited_at) END,
                                            'rate', jobherd.show_rate(g), 'tokens', t.tokens,
                                            'opens_at', clock_timestamp() + make_interval(secs => t.opens_in),
                                            'partition', CASE WHEN g.each_running IS NOT NULL THEN j.partition END,
                                            'each_running', g.each_running,
                                            'partition_running', CASE WHEN g.each_running IS NOT NULL AND j.partition IS NOT NULL
                                                                      THEN jobherd.count_lane(g, jobherd.lane_of(j.partition)) END,
                                            'partition_waits', CASE WHEN g.in_order AND j.partition IS NOT NULL
                                                                    THEN jobherd.lane_waits(g.name, jobherd.lane_of(j.partition)) END,
                                            'each_rate', jobherd.show_rate(jobherd.pace_of(g, '')),
                                            'partition_opens_at',
                                            CASE WHEN g.each_rate IS NOT NULL AND j.partition IS NOT NULL
                                                 THEN (SELECT clock_timestamp() + make_interval(secs => t.opens_in)
                                                         FROM jobherd.tokens_of(jobherd.pace_of(g, jobherd.lane_of(j.partition))) AS t
                                                        WHERE t.tokens < 1) END,
                                            'weights', jobherd.show_weights(g.turns))
                         ORDER BY g.scope)
          FROM jobherd.gates g LEFT JOIN LATERAL jobherd.tokens_of(g) AS t ON g.rate IS NOT NULL
         WHERE (g.scope, g.name) IN (('queue', j.queue), ('kind', j.kind), ('all', '*'))) AS gates,
       EXISTS (SELECT FROM jobherd.kinds k WHERE k.name = j.kind) AS declared,
       (SELECT r.alone FROM jobherd.waiting r WHERE r.id = j.id) AS alone,
       (SELECT count(*) FROM (SELECT FROM jobherd.waiting r WHERE r.queue = j.queue AND (r.priority, r.id) < (j.priority, j.id) LIMIT %(most)s) AS before)
           AS ahead,
       EXISTS (SELECT FROM jobherd.running r WHERE r.queue = j.queue) AS queue_runs,
       serving.turns, elsewhere.sharing, elsewhere.ahead_elsewhere, elsewhere.queues_before, elsewhere.largest_before,
       fleet.workers, fleet.idle, held.host, held.pid, held.slot, held.via, held.lease_left, held.claimed_together, held.cancelled,
       tick.schedule, tick.at AS scheduled_for, tick.missed, member.flow, member.node, member.flow_name, member.flow_state, edges.waits_for, edges.waits_for_count,
       signals.name AS signal_name, signals.topic AS signal_topic, signals.until AS signal_until,
       signals.flow AS children_flow, spawned.pending AS children_pending, spawned.jobs AS children_jobs, spawned.step AS children_step
  FROM one AS j
       LEFT JOIN LATERAL (SELECT t.schedule, t.at, t.missed FROM jobherd.ticks t WHERE t.job = j.id ORDER BY t.at LIMIT 1) AS tick ON true
       LEFT JOIN LATERAL (  -- of a node with many jobs: the flow of the node's flow
           SELECT f.id AS flow, f.name AS flow_name, f.state AS flow_state, (x.extras).node AS node
             FROM stored AS x
                  JOIN jobherd.flows i ON i.id = (x.extras).flow
                  JOIN jobherd.flows f ON f.id = coalesce(i.outer_flow, i.id)
            LIMIT 1) AS member ON true
       LEFT JOIN jobherd.waits AS signals ON signals.job = j.id AND j.state IN ('scheduled', 'retrying')
       LEFT JOIN LATERAL (
           SELECT f.step, greatest(f.pending, 0) AS pending, greatest(f.pending, 0) + f.completed + f.failed + f.cancelled AS jobs
             FROM jobherd.flows f WHERE f.id = signals.flow) AS spawned ON true
       CROSS JOIN LATERAL (
           SELECT (SELECT count(*) FROM jobherd.edges e WHERE e.downstream = j.id AND e.state IS NULL) AS waits_for_count,
                  (SELECT jsonb_agg(jsonb_build_object('job', f.upstream, 'wanted', f.wanted, 'kind', u.kind, 'state', u.state) ORDER BY f.upstream)
                     FROM (SELECT e.upstream, e.wanted FROM jobherd.edges e WHERE e.downstream = j.id AND e.state IS NULL
                            ORDER BY e.upstream LIMIT 5) AS f LEFT JOIN jobherd.jobs u ON u.id = f.upstream) AS waits_for) AS edges
       CROSS JOIN LATERAL (
           SELECT count(*) AS workers, count(*) FILTER (WHERE NOT EXISTS (SELECT FROM jobherd.running r WHERE r.child = c.id)) AS idle
             FROM jobherd.children c JOIN jobherd.supervisors s ON s.id = c.supervisor
            WHERE c.kind IN ('worker', 'remote') AND s.lease_until > clock_timestamp()) AS fleet
       LEFT JOIN LATERAL (
           SELECT s.host, c.pid, c.slot, CASE WHEN c.kind = 'remote' THEN coalesce(v.host, 'a host that has left') END AS via,
                  extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS lease_left,
                  cardinality(r.jobs) - 1 AS claimed_together, EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id) AS cancelled
             FROM jobherd.running r
                  LEFT JOIN jobherd.children c ON c.id = r.child
                  LEFT JOIN jobherd.supervisors s ON s.id = c.supervisor
                  LEFT JOIN jobherd.supervisors v ON v.id = s.via
            WHERE r.token = j.token) AS held ON j.state = 'running'
       CROSS JOIN LATERAL (
           SELECT f.served, f.tiers, f.turns, jobherd.rank_queue(j.queue, f.served) AS rank
             FROM (SELECT nullif(ARRAY(SELECT jsonb_array_elements_text(s.facts -> 'queues')), '{}') AS served, s.id,
                          ARRAY(SELECT jsonb_array_elements_text(s.facts -> 'tiers'))::integer[] AS tiers,
                          coalesce((s.facts ->> 'turns')::boolean, false) AS turns
                     FROM jobherd.supervisors s
                    WHERE s.lease_until > clock_timestamp() AND jsonb_typeof(s.facts -> 'queues') = 'array'
                    UNION ALL
                   SELECT NULL, NULL, '{}', true) AS f
            WHERE jobherd.rank_queue(j.queue, f.served) IS NOT NULL
            ORDER BY f.id IS NULL, NOT f.turns, f.id
            LIMIT 1) AS serving
       CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE serving.turns AND q.tier = q.own_tier) AS sharing,
                  coalesce(sum(b.jobs), 0)::bigint AS ahead_elsewhere, count(*) FILTER (WHERE b.jobs > 0) AS queues_before,
                  (array_agg(q.queue ORDER BY b.jobs DESC))[1] AS largest_before
             FROM (SELECT h.queue, jobherd.rank_queue(h.queue, serving.served) AS rank,
                          coalesce(serving.tiers[jobherd.rank_queue(h.queue, serving.served)], 0) AS tier,
                          coalesce(serving.tiers[serving.rank], 0) AS own_tier
                     FROM (SELECT queue FROM head WHERE queue <> j.queue LIMIT 100) AS h
                    WHERE EXISTS (SELECT FROM jobherd.waiting r WHERE r.id = j.id)
                      AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = h.queue AND g.paused_at IS NOT NULL)) AS q
                  CROSS JOIN LATERAL (
                      SELECT count(*) AS jobs
                        FROM (SELECT FROM jobherd.ready r
                               WHERE r.queue = q.queue
                                 AND (q.tier < q.own_tier
                                      OR (NOT serving.turns AND q.rank = serving.rank AND (r.priority, r.id) < (j.priority, j.id)))
                               LIMIT %(most)s) AS r) AS b
            WHERE q.rank IS NOT NULL) AS elsewhere
