-- Views for users' queries: `jobs` has every job, whether waiting, running or finished.

-- `parked` comes first: so a later column of a job is the view's last.
CREATE VIEW jobherd.waiting AS
SELECT false AS parked, r.* FROM jobherd.ready r
UNION ALL
SELECT true, p.* FROM jobherd.parked p;
COMMENT ON VIEW jobherd.waiting IS 'Jobs that can run now, with those that a claim has set aside.';

-- `history` is every attempt, the last one included, oldest first: the latest 1,000. A job that
-- snoozes every 10 s has 260,000 of them in a month, which took 8 s and 60 MB, and no jsonb can hold a
-- job that snoozes each second. The class of an error is stored within the usage, so no
-- statement of the hot path has a parameter for it. Each constant has a type: without one, the view has
-- other column names after a dump and restore, and `jobherd doctor` reports it. A running job of a remote
-- worker shows the worker and the host of its gateway, as its attempt does once it has ended.
CREATE VIEW jobherd.jobs AS
SELECT one.id, one.kind, one.queue, one.priority, one.state, one.attempts,
       coalesce(one.max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = one.kind),
                5::smallint) AS max_attempts,
       one.crashes, one.payload, one.result, one.error, one.error_code,
       one.run_at, one.created_at, one.started_at, one.finished_at, one.progress,
       coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', a.attempt, 'outcome', a.outcome,
                            'started_at', a.started_at, 'finished_at', a.finished_at,
                            'error_code', a.error_code, 'error_class', a.usage ->> 'error_class',
                            'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on,
                            'usage', CASE WHEN jsonb_typeof(a.usage) = 'object'
                                          THEN nullif(a.usage - 'error_class', '{}') ELSE a.usage END,
                            'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token)
                   FROM (SELECT * FROM jobherd.attempts t WHERE t.job = one.id
                          ORDER BY t.token DESC LIMIT 1000) AS a), '[]')
       || CASE WHEN one.finished_at IS NULL THEN '[]'
               ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                        'attempt', one.attempts, 'outcome', one.state,
                        'started_at', one.started_at, 'finished_at', one.finished_at,
                        'error_code', one.error_code, 'error_class', one.usage ->> 'error_class',
                        'error', one.error, 'traceback', one.traceback, 'ran_on', one.ran_on,
                        'usage', CASE WHEN jsonb_typeof(one.usage) = 'object'
                                      THEN nullif(one.usage - 'error_class', '{}') ELSE one.usage END,
                        'post_mortem', one.post_mortem, 'token', one.token))) END AS history,
       one.expires_at, one.timeout, one.token, one.ran_on,
       (one.extras).tenant AS tenant, (one.extras).webhook AS webhook,
       octet_length((one.extras).payload_bytes) || ' bytes, '
       || encode(substr((one.extras).payload_bytes, 1, 16), 'hex')
       || CASE WHEN octet_length((one.extras).payload_bytes) > 16 THEN '...' ELSE '' END AS payload_bytes,
       (one.extras).parent_id AS parent_id, (one.extras).traceparent AS traceparent,
       CASE WHEN one.finished_at IS NOT NULL THEN one.usage ->> 'error_class'
            WHEN one.error IS NOT NULL
            THEN (SELECT t.usage ->> 'error_class' FROM jobherd.attempts t WHERE t.job = one.id
                   ORDER BY t.token DESC LIMIT 1) END AS error_class,
       (one.extras).partition AS partition
  FROM (SELECT r.id, r.kind, r.queue, r.priority,
               CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, r.attempts,
               r.max_attempts, r.crashes, r.payload, NULL::json AS result,
               r.last_error ->> 'message' AS error, r.last_error ->> 'code' AS error_code,
               r.run_at, r.created_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at,
               NULL::jsonb AS progress, r.expires_at, r.timeout, NULL::bigint AS token,
               NULL::text AS traceback, NULL::text AS ran_on, NULL::jsonb AS usage,
               NULL::jsonb AS post_mortem, r.extras
          FROM jobherd.waiting r
        UNION ALL
        SELECT s.id, s.kind, s.queue, s.priority,
               CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END, s.attempts,
               s.max_attempts, s.crashes, s.payload, NULL::json,
               s.last_error ->> 'message', s.last_error ->> 'code',
               s.run_at, s.created_at, NULL::timestamptz, NULL::timestamptz,
               NULL::jsonb, s.expires_at, s.timeout, NULL::bigint,
               NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, s.extras
          FROM jobherd.scheduled s
        UNION ALL
        SELECT b.id, b.kind, b.queue, b.priority, 'blocked'::text, b.attempts,
               b.max_attempts, b.crashes, b.payload, NULL::json,
               b.last_error ->> 'message', b.last_error ->> 'code',
               b.run_at, b.created_at, NULL::timestamptz, NULL::timestamptz,
               NULL::jsonb, b.expires_at, b.timeout, NULL::bigint,
               NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, b.extras
          FROM jobherd.blocked b
        UNION ALL
        SELECT j.id, j.kind, j.queue, j.priority,
               'running'::text, (j.attempts + 1)::smallint,  -- the claim stores the count before it
               j.max_attempts, j.crashes, j.payload, NULL::json,
               j.last_error ->> 'message', j.last_error ->> 'code',
               j.run_at, j.created_at, c.claimed_at, NULL::timestamptz,
               (SELECT p.progress FROM jobherd.progress p WHERE p.job = j.id AND p.token = c.token),
               j.expires_at, j.timeout, c.token, NULL::text,
               (SELECT CASE WHEN s.via IS NULL THEN s.host || '/' || w.pid
                            ELSE concat_ws(' via ', s.host,
                                           (SELECT g.host FROM jobherd.supervisors g WHERE g.id = s.via)) END
                  FROM jobherd.children w JOIN jobherd.supervisors s ON s.id = w.supervisor
                 WHERE w.id = c.child),
               NULL::jsonb, NULL::jsonb, j.extras
          FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
        UNION ALL
        SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts,
               h.max_attempts, h.crashes, h.payload, h.result, h.error, h.error_code,
               h.run_at, h.created_at, h.started_at, h.finished_at,
               h.progress, NULL::timestamptz, h.timeout, h.token,
               h.traceback, h.ran_on, h.usage, h.post_mortem, h.extras
          FROM jobherd.history h) AS one;
COMMENT ON VIEW jobherd.jobs IS
    'Every job, waiting, running or finished, one row each. DELETE cancels a job, or deletes it if it '
    'has finished.';

-- DELETE FROM jobherd.jobs. A job that finishes at the same moment is deleted or left, never both.
CREATE FUNCTION jobherd.delete_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.finished_at IS NULL THEN
        PERFORM jobherd.cancel(OLD.id);
    ELSE
        PERFORM jobherd.delete(OLD.id);
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER delete_job INSTEAD OF DELETE ON jobherd.jobs FOR EACH ROW EXECUTE FUNCTION jobherd.delete_job();

-- security_barrier: otherwise PostgreSQL could evaluate a caller's own condition on rows of other tenants.
CREATE VIEW jobherd.tenant_jobs WITH (security_barrier = true) AS
SELECT id, kind, queue, priority, state, attempts, max_attempts, crashes, payload, result, error, error_code,
       run_at, created_at, started_at, finished_at, progress, history, expires_at, timeout, token, ran_on,
       tenant, webhook, payload_bytes, parent_id, traceparent, partition
  FROM jobherd.jobs
 WHERE tenant = ANY ((SELECT jobherd.own_tenants())::text[]);
COMMENT ON VIEW jobherd.tenant_jobs IS 'What a tenant''s role sees of its jobs.';
