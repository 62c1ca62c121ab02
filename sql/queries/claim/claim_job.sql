-- Claim only the first waiting job. Run by a worker that was woken, because that job should start at once. This
-- is claim_jobs.sql without the weighing of a batch, which is a third of the server's work for one job. The
-- comments there apply here. Cost: each CTE takes the server a few microseconds, so there are few. A scalar subquery
-- runs once under any plan, so no more than one row is locked.
WITH RECURSIVE head AS (
    (SELECT queue, priority, id FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1)
    UNION ALL
    SELECT after.queue, after.priority, after.id
      FROM head h CROSS JOIN LATERAL (
           SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
           ) AS after
), barred AS MATERIALIZED (
    SELECT FROM jobherd.gates WHERE scope <> 'queue' LIMIT 1
), chosen AS MATERIALIZED (
    (SELECT CASE WHEN h.gate IS NULL THEN h.queue END AS queue, h.priority, h.id
       FROM (SELECT queue, priority, id,
                    (SELECT CASE WHEN g.paused_at IS NULL THEN 'limited' ELSE 'paused' END
                       FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = head.queue) AS gate
               FROM head
             OFFSET 0) AS h
      WHERE h.gate IS DISTINCT FROM 'paused' AND (%(served)s::text[] IS NULL OR h.queue = ANY (%(served)s::text[]))
        AND (%(avoided)s::text[] IS NULL OR h.queue <> ALL (%(avoided)s::text[]))
        AND EXISTS (SELECT FROM jobherd.supervisors WHERE id = %(supervisor)s AND lease_until > clock_timestamp())
        AND NOT EXISTS (SELECT FROM barred)
      ORDER BY array_position(coalesce(%(turns)s::text[], %(served)s::text[]), h.queue) NULLS FIRST,
               CASE WHEN %(turns)s::text[] IS NOT NULL THEN random() END, h.priority, h.id
      LIMIT 1)
    UNION ALL
    SELECT NULL, NULL, NULL FROM barred
), taken AS (
    DELETE FROM jobherd.ready
     WHERE ctid = (
           SELECT ctid FROM jobherd.ready
            WHERE queue = (SELECT queue FROM chosen) AND (priority, id) >= ((SELECT priority FROM chosen), (SELECT id FROM chosen))
              -- AND the conditions of this claim
            ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING ready AS job, id, kind, queue, priority
), batch AS (
    INSERT INTO jobherd.running (child, token, queue, jobs)
    SELECT %(child)s, nextval('jobherd.tokens'), t.queue, ARRAY[t.job] FROM taken t
    RETURNING token
)
SELECT b.token, t.id, t.kind, c.queue, (t.job).payload::text AS payload, (t.job).attempts + 1 AS attempts, (t.job).max_attempts,
       (t.job).crashes, t.priority, (t.job).timeout, date_part('epoch', (t.job).created_at) AS created_at,
       date_part('epoch', (t.job).run_at) AS run_at,
       date_part('epoch', (t.job).expires_at - clock_timestamp()) AS good_for,
       date_part('epoch', clock_timestamp() - greatest((t.job).run_at, (t.job).created_at)) AS waited,
       EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = t.queue AND (r.priority, r.id) > (t.priority, t.id)) AS more,
       CASE WHEN NOT (t.job).extras IS NULL THEN to_json((t.job).extras)::text END AS extras
  FROM chosen c LEFT JOIN (taken t CROSS JOIN batch b) ON true
 -- Always true.
 WHERE (SELECT CASE WHEN %(short)s::text[] IS NOT NULL AND NOT EXISTS (SELECT FROM taken WHERE kind <> ALL (%(short)s::text[]))
                    THEN set_config('synchronous_commit', 'off', true) END) IS DISTINCT FROM ''
