-- The class of the exception that ended an attempt, with its module, like 'smtplib.SMTPServerDisconnected': in the column error_class of the view and in each
-- entry of its history. It is kept within the attempt's usage, so that no statement of the hot path has another parameter, and a job that goes well
-- writes nothing for it.
CREATE OR REPLACE VIEW jobherd.jobs AS
 SELECT id,
    kind,
    queue,
    priority,
    state,
    attempts,
    max_attempts,
    crashes,
    payload,
    result,
    error,
    error_code,
    run_at,
    created_at,
    started_at,
    finished_at,
    progress,
    (COALESCE(( SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at, 'error_code', a.error_code, 'error_class', a.usage ->> 'error_class', 'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on, 'usage', CASE WHEN jsonb_typeof(a.usage) = 'object' THEN nullif(a.usage - 'error_class', '{}') ELSE a.usage END, 'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token) AS jsonb_agg
           FROM (SELECT t.* FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1000) AS a), '[]'::jsonb) ||
        CASE
            WHEN (finished_at IS NULL) THEN '[]'::jsonb
            ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('attempt', attempts, 'outcome', state, 'started_at', started_at, 'finished_at', finished_at, 'error_code', error_code, 'error_class', usage ->> 'error_class', 'error', error, 'traceback', traceback, 'ran_on', ran_on, 'usage', CASE WHEN jsonb_typeof(usage) = 'object' THEN nullif(usage - 'error_class', '{}') ELSE usage END, 'post_mortem', post_mortem, 'token', token)))
        END) AS history,
    good_until,
    timeout,
    token,
    ran_on,
    (extras).tenant AS tenant,
    (extras).webhook AS webhook,
    (((octet_length((extras).payload_bytes) || ' bytes, '::text) || encode(substr((extras).payload_bytes, 1, 16), 'hex'::text)) ||
        CASE
            WHEN (octet_length((extras).payload_bytes) > 16) THEN '...'::text
            ELSE ''::text
        END) AS payload_bytes,
    (extras).set_off_by AS set_off_by,
    (extras).traceparent AS traceparent,
        CASE
            WHEN finished_at IS NOT NULL THEN usage ->> 'error_class'
            WHEN error IS NOT NULL THEN (SELECT t.usage ->> 'error_class' FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1)
        END AS error_class
   FROM ( SELECT ready.id,
            ready.kind,
            ready.queue,
            ready.priority,
                CASE
                    WHEN (ready.attempts > 0) THEN 'retrying'::text
                    ELSE 'ready'::text
                END AS state,
            ready.attempts,
            COALESCE(ready.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = ready.kind)), (5)::smallint) AS max_attempts,
            ready.crashes,
            ready.payload,
            NULL::json AS result,
            (ready.last_error ->> 'message'::text) AS error,
            (ready.last_error ->> 'code'::text) AS error_code,
            ready.run_at,
            ready.created_at,
            NULL::timestamp with time zone AS started_at,
            NULL::timestamp with time zone AS finished_at,
            NULL::jsonb AS progress,
            ready.good_until,
            ready.timeout,
            NULL::bigint AS token,
            NULL::text AS traceback,
            NULL::text AS ran_on,
            NULL::jsonb AS usage,
            NULL::jsonb AS post_mortem,
            ready.extras
           FROM jobherd.ready
        UNION ALL
         SELECT scheduled.id,
            scheduled.kind,
            scheduled.queue,
            scheduled.priority,
                CASE
                    WHEN (scheduled.attempts > 0) THEN 'retrying'::text
                    ELSE 'scheduled'::text
                END AS "case",
            scheduled.attempts,
            COALESCE(scheduled.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = scheduled.kind)), (5)::smallint) AS "coalesce",
            scheduled.crashes,
            scheduled.payload,
            NULL::json AS "json",
            (scheduled.last_error ->> 'message'::text),
            (scheduled.last_error ->> 'code'::text),
            scheduled.run_at,
            scheduled.created_at,
            NULL::timestamp with time zone AS timestamptz,
            NULL::timestamp with time zone AS timestamptz,
            NULL::jsonb AS jsonb,
            scheduled.good_until,
            scheduled.timeout,
            NULL::bigint AS int8,
            NULL::text AS text,
            NULL::text AS text,
            NULL::jsonb AS jsonb,
            NULL::jsonb AS jsonb,
            scheduled.extras
           FROM jobherd.scheduled
        UNION ALL
         SELECT j.id,
            j.kind,
            j.queue,
            j.priority,
            'running'::text AS text,
            j.attempts,
            COALESCE(j.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = j.kind)), (5)::smallint) AS "coalesce",
            j.crashes,
            j.payload,
            NULL::json AS "json",
            (j.last_error ->> 'message'::text),
            (j.last_error ->> 'code'::text),
            j.run_at,
            j.created_at,
            r.claimed_at,
            NULL::timestamp with time zone AS timestamptz,
            ( SELECT p.progress
                   FROM jobherd.progress p
                  WHERE ((p.job = j.id) AND (p.token = r.token))) AS progress,
            j.good_until,
            j.timeout,
            r.token,
            NULL::text AS text,
            ( SELECT ((s.host || '/'::text) || c.pid)
                   FROM (jobherd.children c
                     JOIN jobherd.supervisors s ON ((s.id = c.supervisor)))
                  WHERE (c.id = r.child)),
            NULL::jsonb AS jsonb,
            NULL::jsonb AS jsonb,
            j.extras
           FROM (jobherd.running r
             CROSS JOIN LATERAL unnest(r.jobs) j(id, created_at, run_at, good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras))
        UNION ALL
         SELECT history.id,
            history.kind,
            history.queue,
            history.priority,
            history.state,
            history.attempts,
            COALESCE(history.max_attempts, ( SELECT k.max_attempts
                   FROM jobherd.kinds k
                  WHERE (k.name = history.kind)), (5)::smallint) AS "coalesce",
            history.crashes,
            history.payload,
            history.result,
            history.error,
            history.error_code,
            history.run_at,
            history.created_at,
            history.started_at,
            history.finished_at,
            history.progress,
            NULL::timestamp with time zone AS timestamptz,
            history.timeout,
            history.token,
            history.traceback,
            history.ran_on,
            history.usage,
            history.post_mortem,
            history.extras
           FROM jobherd.history) one;
