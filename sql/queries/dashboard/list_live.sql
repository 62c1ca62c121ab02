-- List matching live jobs, newest first, before %(before)s. Run on users' request, for a page of the list and
-- for bulk actions.
--
-- Each table is walked along its ids, at most %(scan)s rows back, whatever its size; `running` is as small as
-- the fleet. floor is where the walk that stopped first had to end, 0 if none stopped: nothing is known below
-- it, and no row below it is returned. There is always a row: one with a null id carries only the floor. Needs
-- dashboard/force_id_order.sql before it. Text is searched only in jobs of kinds that are declared and hide nothing:
-- a search would reveal hidden values, and which values an unknown kind hides is not known. Of the kinds in %(hidden)s the payloads are
-- returned, to know what to hide in an error.
WITH cut AS MATERIALIZED (
    SELECT greatest(
        CASE WHEN %(states)s::text[] IS NULL OR %(states)s::text[] && '{ready,retrying}' THEN
            (SELECT r.id FROM jobherd.waiting r WHERE r.id < %(before)s::bigint ORDER BY r.id DESC OFFSET %(scan)s - 1 LIMIT 1) END,
        CASE WHEN %(states)s::text[] IS NULL OR %(states)s::text[] && '{scheduled,retrying}' THEN
            (SELECT s.id FROM jobherd.scheduled s WHERE s.id < %(before)s::bigint ORDER BY s.id DESC OFFSET %(scan)s - 1 LIMIT 1) END,
        CASE WHEN %(states)s::text[] IS NULL OR 'blocked' = ANY (%(states)s::text[]) THEN
            (SELECT b.id FROM jobherd.blocked b WHERE b.id < %(before)s::bigint ORDER BY b.id DESC OFFSET %(scan)s - 1 LIMIT 1) END,
        0) AS floor
), page AS (
    (SELECT r.id, r.kind, r.queue, r.priority, CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, r.attempts, r.max_attempts,
            r.crashes, r.last_error ->> 'code' AS error_code, left(r.last_error ->> 'message', 300) AS error, r.run_at, r.created_at,
            NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, (r.extras).tenant AS tenant,
            CASE WHEN r.kind = ANY (%(hidden)s::text[]) THEN r.payload END AS payload,
            r.parked
       FROM jobherd.waiting r
      WHERE r.id < %(before)s::bigint AND r.id >= (SELECT floor FROM cut)
        AND (%(states)s::text[] IS NULL OR %(states)s::text[] && '{ready,retrying}')
        AND (%(states)s::text[] IS NULL OR CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END = ANY (%(states)s::text[]))
        AND (%(kind)s::text IS NULL OR r.kind = %(kind)s::text)
        AND (%(queue)s::text IS NULL OR r.queue = %(queue)s::text)
        AND (%(tenant)s::text IS NULL OR (r.extras).tenant = %(tenant)s::text)
        AND (%(code)s::text IS NULL OR r.last_error ->> 'code' = %(code)s::text)
        AND (%(since)s::timestamptz IS NULL OR r.run_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR r.run_at < %(until)s::timestamptz)
        AND (%(text)s::text IS NULL
             OR r.kind ILIKE %(text)s::text OR r.queue ILIKE %(text)s::text
             OR r.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND (r.last_error ->> 'message' ILIKE %(text)s::text OR r.payload::text ILIKE %(text)s::text))
        AND (%(field)s::text IS NULL OR r.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND strpos(r.payload::text, %(needle)s::text) > 0 AND r.payload::text ~ %(field)s::text)
      ORDER BY r.id DESC
      LIMIT %(limit)s)
    UNION ALL
    (SELECT s.id, s.kind, s.queue, s.priority, CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END, s.attempts, s.max_attempts, s.crashes,
            s.last_error ->> 'code', left(s.last_error ->> 'message', 300), s.run_at, s.created_at, NULL, NULL, (s.extras).tenant,
            CASE WHEN s.kind = ANY (%(hidden)s::text[]) THEN s.payload END, false
       FROM jobherd.scheduled s
      WHERE s.id < %(before)s::bigint AND s.id >= (SELECT floor FROM cut)
        AND (%(states)s::text[] IS NULL OR %(states)s::text[] && '{scheduled,retrying}')
        AND (%(states)s::text[] IS NULL OR CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END = ANY (%(states)s::text[]))
        AND (%(kind)s::text IS NULL OR s.kind = %(kind)s::text)
        AND (%(queue)s::text IS NULL OR s.queue = %(queue)s::text)
        AND (%(tenant)s::text IS NULL OR (s.extras).tenant = %(tenant)s::text)
        AND (%(code)s::text IS NULL OR s.last_error ->> 'code' = %(code)s::text)
        AND (%(since)s::timestamptz IS NULL OR s.run_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR s.run_at < %(until)s::timestamptz)
        AND (%(text)s::text IS NULL
             OR s.kind ILIKE %(text)s::text OR s.queue ILIKE %(text)s::text
             OR s.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND (s.last_error ->> 'message' ILIKE %(text)s::text OR s.payload::text ILIKE %(text)s::text))
        AND (%(field)s::text IS NULL OR s.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND strpos(s.payload::text, %(needle)s::text) > 0 AND s.payload::text ~ %(field)s::text)
      ORDER BY s.id DESC
      LIMIT %(limit)s)
    UNION ALL
    (SELECT b.id, b.kind, b.queue, b.priority, 'blocked', b.attempts, b.max_attempts, b.crashes,
            b.last_error ->> 'code', left(b.last_error ->> 'message', 300), b.run_at, b.created_at, NULL, NULL, (b.extras).tenant,
            CASE WHEN b.kind = ANY (%(hidden)s::text[]) THEN b.payload END, false
       FROM jobherd.blocked b
      WHERE b.id < %(before)s::bigint AND b.id >= (SELECT floor FROM cut)
        AND (%(states)s::text[] IS NULL OR 'blocked' = ANY (%(states)s::text[]))
        AND (%(kind)s::text IS NULL OR b.kind = %(kind)s::text)
        AND (%(queue)s::text IS NULL OR b.queue = %(queue)s::text)
        AND (%(tenant)s::text IS NULL OR (b.extras).tenant = %(tenant)s::text)
        AND (%(code)s::text IS NULL OR b.last_error ->> 'code' = %(code)s::text)
        AND (%(since)s::timestamptz IS NULL OR b.run_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR b.run_at < %(until)s::timestamptz)
        AND (%(text)s::text IS NULL
             OR b.kind ILIKE %(text)s::text OR b.queue ILIKE %(text)s::text
             OR b.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND (b.last_error ->> 'message' ILIKE %(text)s::text OR b.payload::text ILIKE %(text)s::text))
        AND (%(field)s::text IS NULL OR b.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND strpos(b.payload::text, %(needle)s::text) > 0 AND b.payload::text ~ %(field)s::text)
      ORDER BY b.id DESC
      LIMIT %(limit)s)
    UNION ALL
    (SELECT j.id, j.kind, j.queue, j.priority, 'running', (j.attempts + 1)::smallint, j.max_attempts, j.crashes,
            j.last_error ->> 'code', left(j.last_error ->> 'message', 300), j.run_at, j.created_at, b.claimed_at, NULL, (j.extras).tenant,
            CASE WHEN j.kind = ANY (%(hidden)s::text[]) THEN j.payload END, false
       FROM jobherd.running b CROSS JOIN LATERAL unnest(b.jobs) AS j
      WHERE j.id < %(before)s::bigint AND j.id >= (SELECT floor FROM cut)
        AND (%(states)s::text[] IS NULL OR 'running' = ANY (%(states)s::text[]))
        AND (%(kind)s::text IS NULL OR j.kind = %(kind)s::text)
        AND (%(queue)s::text IS NULL OR j.queue = %(queue)s::text)
        AND (%(tenant)s::text IS NULL OR (j.extras).tenant = %(tenant)s::text)
        AND (%(code)s::text IS NULL OR j.last_error ->> 'code' = %(code)s::text)
        AND (%(since)s::timestamptz IS NULL OR b.claimed_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR b.claimed_at < %(until)s::timestamptz)
        AND (%(text)s::text IS NULL
             OR j.kind ILIKE %(text)s::text OR j.queue ILIKE %(text)s::text
             OR j.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND (j.last_error ->> 'message' ILIKE %(text)s::text OR j.payload::text ILIKE %(text)s::text))
        AND (%(field)s::text IS NULL OR j.kind IN (SELECT k.name FROM jobherd.kinds k WHERE k.redact = '[]') AND strpos(j.payload::text, %(needle)s::text) > 0 AND j.payload::text ~ %(field)s::text)
      ORDER BY j.id DESC
      LIMIT %(limit)s)
    ORDER BY id DESC
    LIMIT %(limit)s
)
SELECT cut.floor, clock_timestamp() AS asked_at, p.*
  FROM cut LEFT JOIN page p ON true
 ORDER BY p.id DESC
