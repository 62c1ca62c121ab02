-- Claim jobs of one queue for many waiting Readys, of one or several sessions, in one statement. Run by the gateway.
-- It is claim_jobs.sql, with one row of running for each Ready that gets jobs: its own claim, with its own token.
-- The comments there apply here.
--
-- Parameters: supervisor (of this gateway); one entry for each Ready in sessions, children, attached and sizes (the
-- jobs that it wants, at least 1); served, turns, avoided and short, as in claim_jobs.sql. All sizes together should
-- be at most 500.
-- Columns: those of claim_jobs.sql, then ready: the place of the Ready in the arrays, from 1. Rows come in the order
-- of ready, priority and id. One row without an id and a queue, or without an id, means the same as there. A row with
-- the token -1 names a Ready whose session has ended or is served by another gateway. A session without a lease gets
-- nothing until it is renewed, and without a lease of the gateway's supervisor there is no row.
--
-- The jobs are dealt in their order, one to each Ready in turn: with few jobs, many slots start at once.
-- A job that must run alone gets a Ready alone: such jobs are claimed only if the queue begins with them, one for
-- each Ready, and nothing else with them. Bytes count as in claim_jobs.sql, for all Readys together.
-- A Ready of a session that is being resumed at another gateway at this moment can still get jobs. That gateway
-- releases them (requeue_unacknowledged.sql).
WITH RECURSIVE asked AS MATERIALIZED (
    -- leased: null if another gateway serves the session.
    SELECT w.place::integer AS place, w.size,
           (SELECT s.lease_until > clock_timestamp() FROM jobherd.supervisors s WHERE s.id = w.session AND s.attached = w.attached) AS leased
      FROM unnest(%(sessions)s::bigint[], %(attached)s::integer[], %(sizes)s::integer[]) WITH ORDINALITY AS w (session, attached, size, place)
     WHERE (SELECT true FROM jobherd.supervisors g WHERE g.id = %(supervisor)s AND g.via IS NULL AND g.lease_until > clock_timestamp())
), me AS MATERIALIZED (
    SELECT place, size FROM asked WHERE leased
), dealing AS MATERIALIZED (
    -- The place of the Ready that gets the first job, the second, and so on.
    SELECT count(DISTINCT m.place) AS readys, array_agg(m.place ORDER BY step, m.place) AS places
      FROM me m CROSS JOIN LATERAL generate_series(1, m.size) AS step
),
-- WALK
head AS (
    (SELECT queue, priority, id FROM jobherd.ready ORDER BY queue, priority, id LIMIT 1)
    UNION ALL
    SELECT after.queue, after.priority, after.id
      FROM head h CROSS JOIN LATERAL (
           SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
           ) AS after
),
-- END OF THE WALK
barred AS MATERIALIZED (
    SELECT FROM jobherd.gates WHERE scope <> 'queue' LIMIT 1
), chosen AS MATERIALIZED (
    (SELECT CASE WHEN h.gate IS NULL THEN h.queue END AS queue, h.priority, h.id
       FROM (SELECT queue, priority, id,
                    (SELECT CASE WHEN g.paused_at IS NULL THEN 'limited' ELSE 'paused' END
                       FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = head.queue) AS gate
               FROM head
             OFFSET 0) AS h
      WHERE h.gate IS DISTINCT FROM 'paused' AND (%(served)s::text[] IS NULL OR h.queue = ANY (%(served)s::text[]))
        AND (%(avoided)s::text[] IS NULL OR h.queue <> ALL (%(avoided)s::text[])) AND EXISTS (SELECT FROM me) AND NOT EXISTS (SELECT FROM barred)
      ORDER BY array_position(coalesce(%(turns)s::text[], %(served)s::text[]), h.queue) NULLS FIRST,
               CASE WHEN %(turns)s::text[] IS NOT NULL THEN random() END, h.priority, h.id
      LIMIT 1)
    UNION ALL
    SELECT NULL, NULL, NULL FROM barred
), picked AS MATERIALIZED (
    SELECT ctid AS place, alone, (pg_column_size(payload) + coalesce(pg_column_size(extras), 0))::real / 1000000::real AS share
      FROM jobherd.ready
     WHERE queue = (SELECT queue FROM chosen) AND (priority, id) >= ((SELECT priority FROM chosen), (SELECT id FROM chosen))
       -- AND the conditions of this claim
     ORDER BY priority, id
     LIMIT (SELECT least(500, coalesce(cardinality(places), 0)) FROM dealing)
       FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT place, share, row_number() OVER upto AS number, sum(share) OVER upto AS total, bool_or(alone) OVER upto AS some_alone,
           bool_and(alone) OVER upto AS all_alone
      FROM picked
    WINDOW upto AS (ROWS UNBOUNDED PRECEDING)
), taken AS (
    DELETE FROM jobherd.ready
     WHERE ctid = ANY (ARRAY(SELECT place FROM counted
                              WHERE (number = 1 OR (total - share < 1 AND share < 1))
                                AND (NOT some_alone OR (all_alone AND number <= (SELECT readys FROM dealing)))))
    RETURNING ready AS job, kind, priority, id
), claims AS MATERIALIZED (
    SELECT d.ready, nextval('jobherd.tokens') AS token, array_agg(d.job ORDER BY d.priority, d.id) AS jobs
      FROM (SELECT job, priority, id, (SELECT places FROM dealing)[row_number() OVER (ORDER BY priority, id)] AS ready FROM taken) AS d
     GROUP BY d.ready
), batch AS (
    INSERT INTO jobherd.running (child, token, queue, jobs)
    SELECT (%(children)s::bigint[])[c.ready], c.token, c.jobs[1].queue, c.jobs FROM claims c
), relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
     WHERE %(short)s::text[] IS NOT NULL AND NOT EXISTS (SELECT FROM taken WHERE kind <> ALL (%(short)s::text[]))
)
SELECT c.token, j.id, j.kind, h.queue, j.payload::text AS payload, j.attempts + 1 AS attempts, j.max_attempts, j.crashes, j.priority,
       j.timeout, date_part('epoch', j.created_at) AS created_at,
       date_part('epoch', j.run_at) AS run_at,
       date_part('epoch', j.expires_at - clock_timestamp()) AS good_for,
       date_part('epoch', clock_timestamp() - greatest(j.run_at, j.created_at)) AS waited,
       (SELECT EXISTS (SELECT FROM jobherd.ready r
                        WHERE r.queue = (SELECT queue FROM chosen) AND (r.priority, r.id) > (x.priority, x.id))
          FROM (SELECT priority, id FROM taken ORDER BY priority DESC, id DESC LIMIT 1) AS x) AS more,
       CASE WHEN NOT j.extras IS NULL THEN to_json(j.extras)::text END AS extras,
       c.ready
  FROM chosen h LEFT JOIN (claims c CROSS JOIN LATERAL unnest(c.jobs) AS j) ON true LEFT JOIN relaxed ON true
 UNION ALL
SELECT -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, a.place FROM asked a WHERE a.leased IS NULL
 ORDER BY ready, priority, id
