-- List matching finished jobs, newest first, in the ranges of 4,096 ids from %(low)s to %(high)s, before
-- %(before)s. Run on users' request, if matches are rare.
--
-- The block summaries of the history (history_in_brief) name the pages that can hold a match, and no other page
-- is read. At most %(most)s are found, of any ids: if `found` equals that number, they are not the newest, and
-- the caller must ask for a shorter range. Needs dashboard/force_block_summaries.sql before it. The expression on the id
-- keeps every plan from using the b-tree of the ids, which would read all rows of the range.
WITH found AS MATERIALIZED (
    SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts, h.max_attempts, h.crashes, h.error_code,
           left(h.error, 300) AS error, h.run_at, h.created_at,
           h.started_at, h.finished_at, (h.extras).tenant AS tenant,
            CASE WHEN h.kind = ANY (%(hidden)s::text[]) THEN h.payload END AS payload, false AS parked
      FROM jobherd.history h
     WHERE h.id >> 12 >= %(low)s::bigint AND h.id >> 12 <= %(high)s::bigint AND h.id - %(before)s::bigint < 0
       AND (%(states)s::text[] IS NULL OR h.state = ANY (%(states)s::text[]))
       AND (%(kind)s::text IS NULL OR h.kind = %(kind)s::text)
       AND (%(queue)s::text IS NULL OR h.queue = %(queue)s::text)
       AND (%(tenant)s::text IS NULL OR (h.extras).tenant = %(tenant)s::text)
       AND (%(code)s::text IS NULL OR h.error_code = %(code)s::text)
       AND (%(since)s::timestamptz IS NULL OR h.finished_at >= %(since)s::timestamptz)
       AND (%(until)s::timestamptz IS NULL OR h.finished_at < %(until)s::timestamptz)
       AND (%(text)s::text IS NULL
            OR h.kind ILIKE %(text)s::text OR h.queue ILIKE %(text)s::text
             OR h.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND (h.error ILIKE %(text)s::text OR h.payload::text ILIKE %(text)s::text))
        AND (%(field)s::text IS NULL OR h.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND strpos(h.payload::text, %(needle)s::text) > 0 AND h.payload::text ~ %(field)s::text)
     LIMIT %(most)s
)
SELECT (SELECT count(*) FROM found) AS found, clock_timestamp() AS asked_at, p.*
  FROM (SELECT) AS always LEFT JOIN (SELECT * FROM found ORDER BY id DESC LIMIT %(limit)s) AS p ON true
 ORDER BY p.id DESC
