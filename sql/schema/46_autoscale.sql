-- What an autoscaler asks for: how many workers the jobs of some queues need now.
--
-- Private tables as an interface would break with each migration, and a count of the waiting jobs alone removes pods
-- whose workers are busy. With no supervisor at all, no maintenance process promotes due jobs, starts the jobs of
-- schedules or passes on the ends of jobs in flows. So what is due counts as well.
--
-- Cost: queues and kinds are found by index, one probe each, and no count reads more than 10,000 jobs.

CREATE FUNCTION jobherd.demand_for_workers(queues text[])
RETURNS integer
LANGUAGE sql STABLE
AS $$
WITH RECURSIVE walk (queue, step) AS (
    (SELECT r.queue, 1 FROM jobherd.ready r ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM jobherd.ready r WHERE r.queue > w.queue ORDER BY r.queue LIMIT 1), w.step + 1
      FROM walk w
     WHERE w.queue IS NOT NULL AND w.step < 1000
), set_aside (kind, step) AS (
    (SELECT p.kind, 1 FROM jobherd.parked p ORDER BY p.kind LIMIT 1)
    UNION ALL
    SELECT (SELECT p.kind FROM jobherd.parked p WHERE p.kind > k.kind ORDER BY p.kind LIMIT 1), k.step + 1
      FROM set_aside k
     WHERE k.kind IS NOT NULL AND k.step < 1000
), room AS MATERIALIZED (
    SELECT g.scope, g.name,
           CASE WHEN g.paused_at IS NOT NULL THEN 0
                WHEN g.max_running IS NOT NULL THEN greatest(0, g.max_running - jobherd.count_running(g.scope, g.name, g.limited_at))
                -- A rate lets jobs through one by one: more workers do not make it faster.
                WHEN g.scope = 'kind' AND g.rate IS NOT NULL THEN 1
                ELSE 10000 END AS jobs
      FROM jobherd.gates g
), waiting AS (
    SELECT w.queue, counted.jobs
      FROM walk w
     CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
          FROM (SELECT FROM jobherd.ready r WHERE r.queue = w.queue ORDER BY r.priority, r.id LIMIT 10000) AS one
     ) AS counted
     WHERE jobherd.rank_queue(w.queue, queues) IS NOT NULL
    UNION ALL
    SELECT one.queue, count(*)
      FROM set_aside k
      LEFT JOIN room ON room.scope = 'kind' AND room.name = k.kind
     CROSS JOIN LATERAL (
        SELECT p.queue FROM jobherd.parked p
         WHERE p.kind = k.kind AND jobherd.rank_queue(p.queue, queues) IS NOT NULL
         ORDER BY p.queue, p.priority, p.id LIMIT coalesce(room.jobs, 10000)
     ) AS one
     GROUP BY k.kind, one.queue
), allowed AS (
    SELECT least(sum(w.jobs), coalesce(min(room.jobs), 10000)) AS jobs
      FROM waiting w LEFT JOIN room ON room.scope = 'queue' AND room.name = w.queue
     GROUP BY w.queue
)
SELECT least(10000,
      (SELECT coalesce(sum(a.jobs), 0) FROM allowed a WHERE NOT EXISTS (SELECT FROM room WHERE scope = 'all' AND jobs = 0))
    + (SELECT count(DISTINCT r.child) FROM jobherd.running r WHERE jobherd.rank_queue(r.queue, queues) IS NOT NULL)
    + (SELECT count(*)
         FROM (SELECT s.queue FROM jobherd.scheduled s WHERE s.run_at <= now() + interval '5 s' ORDER BY s.run_at, s.id LIMIT 10000) AS due
        WHERE jobherd.rank_queue(due.queue, queues) IS NOT NULL)
    + CASE WHEN EXISTS (SELECT FROM jobherd.ends)
             OR EXISTS (SELECT FROM jobherd.schedules s
                         WHERE s.asked <> '{}' OR (s.paused_at IS NULL AND s.retired_at IS NULL AND s.next_at <= now() + interval '5 s'))
           THEN 1 ELSE 0 END)::integer
$$;
COMMENT ON FUNCTION jobherd.demand_for_workers IS
    'Returns how many workers the jobs of these queues need now, at most 10,000: one for each waiting job that no pause and no concurrency limit holds back, one for each worker that has jobs, one for each job that is due within 5 s, and one if a schedule or a flow waits for a maintenance process. Queues are named as in the setting `queues`: names, or patterns that end in `*`; null means all. For autoscalers such as KEDA: SELECT jobherd.demand_for_workers(ARRAY[''mail'', ''media-*'']);';
