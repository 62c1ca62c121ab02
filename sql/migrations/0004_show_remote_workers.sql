-- What users see of remote workers, and a check of fleet commands.

-- A running job of a remote worker shows the worker and the host of its gateway, as its attempt does
-- once it has ended. Before, it showed the worker's name as a host and process 0.
CREATE OR REPLACE VIEW jobherd.jobs AS
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
                   ORDER BY t.token DESC LIMIT 1) END AS error_class
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

-- A session of a remote worker is not a supervisor: no process would take a fleet command to it.
CREATE OR REPLACE FUNCTION jobherd.send_fleet_command(
    supervisor bigint, name text, arguments jsonb DEFAULT '{}', asked_by text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    whom   CONSTANT bigint := supervisor;
    what   CONSTANT text := name;
    given  CONSTANT jsonb := coalesce(arguments, '{}');
    who    CONSTANT text := left(coalesce(nullif(asked_by, ''), session_user), 200);
    why    CONSTANT text := reason;
    place text;
    number bigint;
BEGIN
    IF what IS NULL OR what !~ '^[a-z][a-z_]{0,39}$' THEN
        RAISE EXCEPTION 'jobherd.send_fleet_command: name % is not a word like "drain"',
            coalesce(quote_literal(left(what, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example drain, add, remove, reload, report.';
    ELSIF jsonb_typeof(given) <> 'object' OR octet_length(given::text) > 10000 THEN
        RAISE EXCEPTION 'jobherd.send_fleet_command: arguments must be a JSON object of at most 10,000 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.host || '/' || s.pid INTO place FROM jobherd.supervisors s WHERE s.id = whom
       AND s.via IS NULL AND s.lease_until > clock_timestamp();
    IF place IS NULL THEN
        RAISE EXCEPTION 'jobherd.send_fleet_command: supervisor % is not there: it has left, or its lease has lapsed',
            coalesce(whom::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'jobherd fleet lists those that are.';
    END IF;
    IF what = 'report' THEN
        SELECT o.id INTO number FROM jobherd.fleet_commands o
         WHERE o.supervisor = whom AND o.name = 'report' AND o.asked_at > clock_timestamp() - interval '1 s'
         ORDER BY o.id DESC LIMIT 1;
        IF number IS NOT NULL THEN RETURN number; END IF;
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM jobherd.fleet_commands o
                               WHERE o.supervisor = whom AND o.done_at IS NULL LIMIT 100) AS open) >= 100 THEN
        RAISE EXCEPTION 'jobherd.send_fleet_command: supervisor % has 100 fleet commands that it has not answered yet',
            whom
            USING ERRCODE = 'program_limit_exceeded',
                HINT = 'Wait until it has; what it has not taken is refused after 30 s.';
    END IF;
    INSERT INTO jobherd.fleet_commands (supervisor, name, arguments, asked_by) VALUES (whom, what, given, who)
    RETURNING id INTO number;
    IF what <> 'report' THEN
        PERFORM jobherd.note_unless_noted(who, what,
            given || jsonb_build_object('supervisor', whom, 'process', place, 'command', number), why);
    END IF;
    PERFORM jobherd.notify('jobherd_jobs', '@order:' || whom);
    RETURN number;
END $$;
