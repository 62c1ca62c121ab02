-- Take up to %(wanted)s jobs of one queue, in the order of priority and id, and count the attempt. Run by a child.
--
-- head walks from queue to queue by index, so it costs one probe for each queue that holds jobs, whatever their number.
-- picked locks rows and skips what others hold; it is materialized and deleted by ctid, so no plan can take more rows than
-- asked (an IN (... LIMIT n FOR UPDATE SKIP LOCKED) can be run again for each outer row). A job that is to run alone ends
-- the batch before it. me is the fence against a frozen host: a child whose supervisor has lost its lease takes nothing.
-- Small tables are asked by scalar subqueries and not joined: which join is best would depend on statistics.
-- A claim need not wait for its fsync: lost with the server, its job is simply still there, and so is the fence, for a token that no
-- durable row knows may be given anew. %(durable)s is true where a settlement stands in the same transaction, which must wait.
-- One row without an id says: every waiting row of that queue is in other hands. Ask again, with that queue among %(avoided)s.
WITH RECURSIVE me AS MATERIALIZED (
    SELECT c.id, CASE WHEN NOT %(durable)s::boolean THEN set_config('synchronous_commit', 'off', true) END
      FROM jobherd.children c
     WHERE c.id = %(child)s AND (SELECT s.lease_until FROM jobherd.supervisors s WHERE s.id = c.supervisor) > clock_timestamp()
), head AS (
    (SELECT queue, priority, id FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1)
    UNION ALL
    SELECT after.queue, after.priority, after.id
      FROM head h CROSS JOIN LATERAL (
           SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
           ) AS after
), chosen AS MATERIALIZED (
    SELECT h.queue
      FROM head h
     WHERE (SELECT q.paused_at FROM jobherd.queues q WHERE q.name = h.queue) IS NULL AND (%(served)s::text[] IS NULL OR h.queue = ANY (%(served)s::text[]))
       AND (%(avoided)s::text[] IS NULL OR h.queue <> ALL (%(avoided)s::text[])) AND EXISTS (SELECT FROM me)
     ORDER BY array_position(%(served)s::text[], h.queue), h.priority, h.id
     LIMIT 1
), picked AS MATERIALIZED (
    SELECT ctid AS place, priority, id, alone
      FROM jobherd.ready
     WHERE queue = (SELECT queue FROM chosen)
     ORDER BY priority, id
     LIMIT %(wanted)s
       FOR UPDATE SKIP LOCKED
), numbered AS MATERIALIZED (
    SELECT place, alone, row_number() OVER (ORDER BY priority, id) AS number FROM picked
), taken AS (
    DELETE FROM jobherd.ready
     WHERE ctid = ANY (ARRAY(
           SELECT place FROM numbered
            WHERE number = 1 OR number < coalesce((SELECT min(number) FROM numbered WHERE alone), 2147483647)))
    RETURNING *
), batch AS (
    INSERT INTO jobherd.running (child, token, queue, jobs)
    SELECT %(child)s, nextval('jobherd.tokens'), min(t.queue),
           array_agg((t.id, t.created_at, t.run_at, t.good_until, t.timeout, t.last_error, t.priority, t.attempts + 1::smallint,
                      t.max_attempts, t.crashes, t.alone, t.queue, t.kind, t.payload)::jobherd.ready ORDER BY t.priority, t.id)
      FROM taken t
    HAVING count(*) > 0
    RETURNING token
)
SELECT b.token, t.id, t.kind, t.queue, t.payload::text AS payload, t.attempts + 1 AS attempts, t.max_attempts, t.crashes, t.priority,
       t.timeout, extract(epoch FROM t.created_at)::double precision AS created_at,
       extract(epoch FROM t.run_at)::double precision AS run_at,
       extract(epoch FROM t.good_until - clock_timestamp())::double precision AS good_for,
       extract(epoch FROM clock_timestamp() - greatest(t.run_at, t.created_at))::double precision AS waited
  FROM taken t CROSS JOIN batch b
UNION ALL
SELECT NULL, NULL, NULL, c.queue, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM chosen c
 WHERE NOT EXISTS (SELECT FROM picked)
 ORDER BY priority, id
