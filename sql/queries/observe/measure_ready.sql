-- Return the depth of each queue that holds ready jobs, and the age of its oldest job. Run by a web process for
-- the metrics, on its own session.
--
-- A backlog of a million rows must cost no more than one of a thousand. Each queue is counted in its index up to
-- a share of %(most)s rows (then `capped`: at least that many). The queues in %(names)s are always measured. The
-- others are found by index, one probe each, at most %(queues)s of them; if there are more, all that were found
-- this way are `capped`. The oldest job is searched among the first 100 in claim order of each of the 20 least
-- urgent priorities, where jobs wait longest.
WITH RECURSIVE walk (queue, step) AS (
    (SELECT r.queue, 1 FROM jobherd.waiting r ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM jobherd.waiting r WHERE r.queue > w.queue ORDER BY r.queue LIMIT 1), w.step + 1
      FROM walk w
     WHERE w.queue IS NOT NULL AND w.step < %(queues)s::integer + cardinality(%(names)s::text[])
), names AS MATERIALIZED (
    SELECT queue, cut.short FROM walk CROSS JOIN (SELECT count(queue) >= %(queues)s::integer + cardinality(%(names)s::text[]) AS short FROM walk) AS cut
     WHERE queue IS NOT NULL AND queue <> ALL (%(names)s::text[])
    UNION ALL
    SELECT n.queue COLLATE "C", false FROM unnest(%(names)s::text[]) AS n (queue)
), share AS MATERIALIZED (
    SELECT greatest(1000, %(most)s::bigint * 2 / greatest(count(*), 2)) AS most FROM names
)
SELECT n.queue, depth.jobs, n.short OR depth.jobs >= (SELECT most FROM share) AS capped, coalesce(age.oldest, 0) AS oldest
  FROM names n
 CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
      FROM (SELECT FROM jobherd.waiting r WHERE r.queue = n.queue ORDER BY r.priority, r.id LIMIT (SELECT most FROM share)) AS counted
 ) AS depth
 CROSS JOIN LATERAL (
    WITH RECURSIVE ranks (priority, step) AS (
        (SELECT r.priority, 1 FROM jobherd.waiting r WHERE r.queue = n.queue ORDER BY r.priority DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT r.priority FROM jobherd.waiting r WHERE r.queue = n.queue AND r.priority < k.priority ORDER BY r.priority DESC LIMIT 1),
               k.step + 1
          FROM ranks k
         WHERE k.priority IS NOT NULL AND k.step < 20
    )
    SELECT greatest(0, max(extract(epoch FROM clock_timestamp() - head.run_at)))::double precision AS oldest
      FROM ranks k
     CROSS JOIN LATERAL (
        -- Not `=`: the planner would sort by id only, and read the whole index by id to find the rows of a small
        -- queue.
        SELECT r.run_at FROM jobherd.waiting r WHERE r.queue = n.queue AND r.priority BETWEEN k.priority AND k.priority
         ORDER BY r.priority, r.id LIMIT 100
     ) AS head
     WHERE k.priority IS NOT NULL
 ) AS age
