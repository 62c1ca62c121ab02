-- List matching finished jobs, newest first, before %(before)s, among the %(scan)s before it and no further. Run
-- on users' request, to begin a page.
--
-- A filter with many matches fills the page at once. If matches are rare, dashboard/list_finished_ranges.sql continues below
-- floor, which is 0 if this was all of the history. There is always a row: one with a null id carries only the
-- floor. Needs dashboard/force_id_order.sql before it. Jobs that did not complete have an index of their own:
-- %(troubled)s (only these are wanted) avoids walking past all completed jobs.
WITH cut AS MATERIALIZED (
    SELECT coalesce(
        CASE WHEN %(troubled)s::boolean THEN
            (SELECT h.id FROM jobherd.history h WHERE h.id < %(before)s::bigint AND h.state <> 'completed' ORDER BY h.id DESC OFFSET %(scan)s - 1 LIMIT 1)
        ELSE
            (SELECT h.id FROM jobherd.history h WHERE h.id < %(before)s::bigint ORDER BY h.id DESC OFFSET %(scan)s - 1 LIMIT 1)
        END, 0) AS floor
), page AS (
    SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts, h.max_attempts, h.crashes, h.error_code,
           left(h.error, 300) AS error, h.run_at, h.created_at,
           h.started_at, h.finished_at, (h.extras).tenant AS tenant,
            CASE WHEN h.kind = ANY (%(hidden)s::text[]) THEN h.payload END AS payload, false AS parked
      FROM jobherd.history h
     WHERE h.id < %(before)s::bigint AND h.id >= (SELECT floor FROM cut)
       AND (NOT %(troubled)s::boolean OR h.state <> 'completed')
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
     ORDER BY h.id DESC
     LIMIT %(limit)s
)
SELECT cut.floor, clock_timestamp() AS asked_at, p.*
  FROM cut LEFT JOIN page p ON true
 ORDER BY p.id DESC
