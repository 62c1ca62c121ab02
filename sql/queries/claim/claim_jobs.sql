-- Claim up to %(wanted)s jobs of one queue, in the order of priority and id. Run by a worker.
--
-- Jobs move to running as whole rows, so a column that a later version adds moves too. In the same way the extras
-- are returned whole, as one JSON object. The row keeps the count of the attempts before the claim. The returned
-- count includes the new attempt.
-- head walks from queue to queue by index: one probe for each queue that holds jobs, whatever their number.
-- picked starts at the row that head has found, with nothing before it in this snapshot, so dead rows are read
-- only once. It locks rows and skips those that others have locked. It is one materialized row, and its rows are
-- deleted by ctid, so no plan can take more rows than asked (an IN (... LIMIT n FOR UPDATE SKIP LOCKED) can be
-- run again for each outer row).
-- %(shares)s says how much of a batch a job of each of %(kinds)s is expected to fill. Nothing more is claimed
-- after the jobs that fill it, and no long job after any other. A kind that is not among them, and a job that
-- must run alone, count as long. Without the shares, only the number counts.
-- Bytes count too: a megabyte, as it is stored, fills a batch. A row of running, its answer and a worker can
-- hold only so much.
-- counted sums in the order in which picked took them: an array is read in its order.
-- chosen is also the fence against a frozen host: a worker whose supervisor has lost its lease claims nothing.
-- Small tables are queried by scalar subqueries and not joined: the best join would depend on statistics.
-- A claim that has only short jobs does not wait for its fsync. If it is lost with the server, its jobs are
-- simply still ready, and their completion waits anyway. A claim with a long job waits: a crash of the server
-- must not cost its run. %(short)s names the short kinds; without it every claim waits. A settlement must be in
-- a transaction of its own, and always waits. A lost token may be assigned again, to another worker.
-- This statement does not handle a queue with a concurrency limit, or the pause or limit of a kind or of
-- everything: a first row without a token and a queue means that claim_gated.sql must run instead.
-- %(turns)s is the order of the queues when they take turns (workers/claim/queue_turns.py). A queue that is not in it
-- comes first; several such queues come in random order.
-- If %(turns)s is null, the order of %(served)s decides, and without that the priority and id of the first job
-- of each queue.
-- A first row without a token, and with a queue, means that every waiting row of that queue is locked by other sessions. Run the
-- statement again with that queue among %(avoided)s.
--
-- Returns the rows of workers/job/row.py `claimed_jobs`: first one about the claim, then one for each job in order.
-- Cost: each column of each row, each sort and each join is up to a tenth of the work for a job. So what is the same
-- for all jobs is returned once, what few jobs have is in one column that is null for all others, and ordered is
-- the only sort.
WITH RECURSIVE
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
        AND (%(avoided)s::text[] IS NULL OR h.queue <> ALL (%(avoided)s::text[]))
        AND EXISTS (SELECT FROM jobherd.supervisors WHERE id = %(supervisor)s AND lease_until > clock_timestamp())
        AND NOT EXISTS (SELECT FROM barred)
      ORDER BY array_position(coalesce(%(turns)s::text[], %(served)s::text[]), h.queue) NULLS FIRST,
               CASE WHEN %(turns)s::text[] IS NOT NULL THEN random() END, h.priority, h.id
      LIMIT 1)
    UNION ALL
    SELECT NULL, NULL, NULL FROM barred
), picked AS MATERIALIZED (
    SELECT array_agg(place) AS places, array_agg(share) AS shares, sum(share) AS total
      FROM (SELECT ctid AS place,
                   CASE WHEN alone THEN 2 WHEN %(kinds)s::text[] IS NULL THEN 0
                        ELSE coalesce((%(shares)s::real[])[array_position(%(kinds)s::text[], kind)], 1) END
                   + (pg_column_size(payload) + coalesce(pg_column_size(extras), 0))::real / 1000000::real AS share
              FROM jobherd.ready
             WHERE queue = (SELECT queue FROM chosen) AND (priority, id) >= ((SELECT priority FROM chosen), (SELECT id FROM chosen))
               -- AND the conditions of this claim
             ORDER BY priority, id
             LIMIT %(wanted)s
               FOR UPDATE SKIP LOCKED) AS p
), taken AS (
    DELETE FROM jobherd.ready
     WHERE ctid = ANY ((
           SELECT CASE WHEN total < 1 THEN places
                       ELSE places[:(SELECT count(*)
                                       FROM (SELECT share, sum(share) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                                               FROM unnest(shares) AS s (share)) AS counted
                                      WHERE before IS NULL OR (before < 1 AND share < 1))] END
             FROM picked)::tid[])
    RETURNING priority, id, kind, ready AS job
), ordered AS MATERIALIZED (
    SELECT priority, id, kind, job FROM taken ORDER BY priority, id
), batch AS (
    INSERT INTO jobherd.running (child, token, queue, jobs)
    SELECT %(child)s, nextval('jobherd.tokens'), (SELECT queue FROM chosen), array_agg(job) FROM ordered HAVING count(*) > 0
    RETURNING token
), relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
     WHERE %(short)s::text[] IS NOT NULL AND NOT EXISTS (SELECT FROM ordered WHERE kind <> ALL (%(short)s::text[]))
)
SELECT b.token, c.queue, NULL AS payload,
       CASE WHEN EXISTS (SELECT FROM jobherd.ready r
                          WHERE r.queue = c.queue
                            AND (r.priority, r.id) > ((SELECT max(priority) FROM ordered),
                                                      (SELECT id FROM ordered ORDER BY priority DESC, id DESC LIMIT 1)))
            THEN 1 ELSE 0 END AS more,
       NULL AS priority, date_part('epoch', clock_timestamp()) AS now, NULL AS run_at, NULL AS rare
  FROM chosen c LEFT JOIN batch b ON true
 WHERE (SELECT count(*) FROM relaxed) >= 0
UNION ALL
SELECT id, kind, (job).payload::text, (job).attempts + 1, priority, date_part('epoch', (job).created_at), date_part('epoch', (job).run_at),
       CASE WHEN (job).max_attempts IS NOT NULL OR (job).timeout IS NOT NULL OR (job).expires_at IS NOT NULL OR (job).crashes > 0
            THEN json_build_object(
                     'max_attempts', (job).max_attempts, 'crashes', (job).crashes, 'timeout', (job).timeout,
                     'good_for', date_part('epoch', (job).expires_at - clock_timestamp()),
                     'extras', CASE WHEN NOT (job).extras IS NULL THEN to_json((job).extras)::text END)::text
            -- Cost: alone, as members of flows have them. An object around them took twice as long to build, and to read.
            WHEN NOT (job).extras IS NULL THEN to_json((job).extras)::text END
  FROM ordered
