-- List a page of jobs, live and finished, newest first, before %(before)s. Run on users' request.
--
-- Each table is walked backwards by id, at most %(scan)s rows, so a page costs the same whatever the backlog and
-- the history. If a walk stopped early, nothing is known below its lowest id: floor is the highest of those, and
-- rows below it are left for the next page. There is always a row: one with a null id carries only the floor.
WITH seen AS MATERIALIZED (
    (SELECT 'ready' AS place, id, kind, queue, priority, CASE WHEN attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, attempts,
            max_attempts, crashes, last_error ->> 'code' AS error_code, left(last_error ->> 'message', 200) AS error, run_at, created_at,
            NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, (extras).tenant AS tenant
       FROM jobherd.waiting
      WHERE id < %(before)s::bigint AND (%(states)s::text[] IS NULL OR %(states)s::text[] && '{ready,retrying}')
      ORDER BY id DESC
      LIMIT %(scan)s)
    UNION ALL
    (SELECT 'scheduled', id, kind, queue, priority, CASE WHEN attempts > 0 THEN 'retrying' ELSE 'scheduled' END, attempts,
            max_attempts, crashes, last_error ->> 'code', left(last_error ->> 'message', 200), run_at, created_at, NULL, NULL, (extras).tenant
       FROM jobherd.scheduled
      WHERE id < %(before)s::bigint AND (%(states)s::text[] IS NULL OR %(states)s::text[] && '{scheduled,retrying}')
      ORDER BY id DESC
      LIMIT %(scan)s)
    UNION ALL
    (SELECT 'blocked', id, kind, queue, priority, 'blocked', attempts, max_attempts, crashes, last_error ->> 'code',
            left(last_error ->> 'message', 200), run_at, created_at, NULL, NULL, (extras).tenant
       FROM jobherd.blocked
      WHERE id < %(before)s::bigint AND (%(states)s::text[] IS NULL OR 'blocked' = ANY (%(states)s::text[]))
      ORDER BY id DESC
      LIMIT %(scan)s)
    UNION ALL
    (SELECT 'running', j.id, j.kind, j.queue, j.priority, 'running', (j.attempts + 1)::smallint, j.max_attempts, j.crashes, j.last_error ->> 'code',
            left(j.last_error ->> 'message', 200), j.run_at, j.created_at, r.claimed_at, NULL, (j.extras).tenant
       FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
      WHERE j.id < %(before)s::bigint AND (%(states)s::text[] IS NULL OR %(states)s::text[] && '{running}')
      ORDER BY j.id DESC
      LIMIT %(scan)s)
    UNION ALL
    (SELECT 'troubled', id, kind, queue, priority, state, attempts, max_attempts, crashes, error_code, left(error, 200), run_at,
            created_at, started_at, finished_at, (extras).tenant
       FROM jobherd.history
      WHERE id < %(before)s::bigint AND state <> 'completed'
        AND %(states)s::text[] && '{failed,cancelled,expired}' AND NOT 'completed' = ANY (%(states)s::text[])
      ORDER BY id DESC
      LIMIT %(scan)s)
    UNION ALL
    (SELECT 'past', id, kind, queue, priority, state, attempts, max_attempts, crashes, error_code, left(error, 200), run_at,
            created_at, started_at, finished_at, (extras).tenant
       FROM jobherd.history
      WHERE id < %(before)s::bigint AND (%(states)s::text[] IS NULL OR 'completed' = ANY (%(states)s::text[]))
      ORDER BY id DESC
      LIMIT %(scan)s)
), cut AS (
    SELECT coalesce(max(lowest), 0) AS floor
      FROM (SELECT min(id) AS lowest FROM seen GROUP BY place HAVING count(*) >= %(scan)s) AS short
), page AS (
    SELECT s.*
      FROM seen s CROSS JOIN cut
     WHERE s.id >= cut.floor
       AND (%(states)s::text[] IS NULL OR s.state = ANY (%(states)s::text[]))
       AND (%(kind)s::text IS NULL OR s.kind = %(kind)s::text)
       AND (%(queue)s::text IS NULL OR s.queue = %(queue)s::text)
       AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s::text)
       AND (%(code)s::text IS NULL OR s.error_code = %(code)s::text)
     ORDER BY s.id DESC
     LIMIT %(limit)s
)
SELECT cut.floor, clock_timestamp() AS asked_at, p.id, p.kind, p.queue, p.priority, p.state, p.attempts,
       coalesce(p.max_attempts, k.max_attempts, 5::smallint) AS max_attempts, p.crashes, p.error_code, p.error, p.run_at, p.created_at,
       p.started_at, p.finished_at, p.tenant
  FROM cut LEFT JOIN page p ON true LEFT JOIN jobherd.kinds k ON k.name = p.kind
 ORDER BY p.id DESC
