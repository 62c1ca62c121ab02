-- List the last failing attempt of the newest %(most)s jobs that did not complete, and of the next %(most)s that retry: what the
-- errors of the last %(seconds)s seconds are grouped by, of one kind or (%(kind)s is null) of all. Run on users' request.
--
-- A bounded number of rows is read, by index: %(most)s finished jobs, 10,000 scheduled jobs, and the attempt before of
-- %(most)s of them. `cut` says that there are more. For the kinds %(hidden)s it returns the payload too: its values must
-- be removed from the texts.
WITH troubled AS MATERIALIZED (
    SELECT h.id, h.kind, h.queue, h.state, h.attempts, h.error_code AS code, h.usage ->> 'error_class' AS class, left(h.error, 500) AS error,
           right(h.traceback, 3000) AS traceback, h.finished_at AS at, NULL::timestamptz AS run_at,
           CASE WHEN h.kind = ANY (%(hidden)s::text[]) THEN h.payload END AS payload
      FROM jobherd.history h WHERE h.state <> 'completed' ORDER BY h.id DESC LIMIT %(most)s::integer
), next AS MATERIALIZED (
    SELECT s.id, s.kind, s.queue, s.attempts, s.last_error, s.run_at, CASE WHEN s.kind = ANY (%(hidden)s::text[]) THEN s.payload END AS payload
      FROM jobherd.scheduled s ORDER BY s.run_at, s.id LIMIT 10000
), again AS MATERIALIZED (
    SELECT * FROM next WHERE attempts > 0 LIMIT %(most)s::integer
), found AS (
    SELECT * FROM troubled
    UNION ALL
    SELECT a.id, a.kind, a.queue, 'retrying', a.attempts, a.last_error ->> 'code', t.usage ->> 'error_class', left(a.last_error ->> 'message', 500),
           right(t.traceback, 3000), coalesce(t.finished_at, a.run_at), a.run_at, a.payload
      FROM again a
      LEFT JOIN LATERAL (SELECT t.usage, t.traceback, t.finished_at FROM jobherd.attempts t WHERE t.job = a.id ORDER BY t.token DESC LIMIT 1) AS t ON true
)
SELECT f.id, f.kind, f.queue, f.state, f.attempts, f.code, f.class, f.error, f.traceback, f.at, f.run_at, f.payload,
       extract(epoch FROM clock_timestamp() - f.at)::double precision AS ago,
       (SELECT count(*) FROM troubled t WHERE t.at > clock_timestamp() - make_interval(secs => %(seconds)s::double precision)) >= %(most)s::integer OR (SELECT count(*) FROM again) >= %(most)s::integer AS cut
  FROM found f
 WHERE f.state IN ('failed', 'expired', 'retrying') AND f.at > clock_timestamp() - make_interval(secs => %(seconds)s::double precision)
   AND (%(kind)s::text IS NULL OR f.kind = %(kind)s::text)
 ORDER BY f.at DESC, f.id DESC
