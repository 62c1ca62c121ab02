-- A job that is run again keeps the timeout that it was enqueued with. The past did not remember it, so that a retry, or a copy with another payload, ran
-- under the timeout of its kind: what needs two hours and was given them was ended after five minutes, however often it was retried. Nobody writes
-- the column of what ended before; such a job is run again as it was until now.
ALTER TABLE jobherd.history ADD COLUMN timeout double precision;

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
    (COALESCE(( SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at, 'error_code', a.error_code, 'error', a.error, 'traceback', a.traceback, 'ran_on', a.ran_on, 'usage', a.usage, 'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token) AS jsonb_agg
           FROM jobherd.attempts a
          WHERE (a.job = one.id)), '[]'::jsonb) ||
        CASE
            WHEN (finished_at IS NULL) THEN '[]'::jsonb
            ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('attempt', attempts, 'outcome', state, 'started_at', started_at, 'finished_at', finished_at, 'error_code', error_code, 'error', error, 'traceback', traceback, 'ran_on', ran_on, 'usage', usage, 'post_mortem', post_mortem, 'token', token)))
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
    (extras).traceparent AS traceparent
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

CREATE OR REPLACE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), current_date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                did := true;
                answer := 'cancelling';
                PERFORM jobherd.notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at, current_date + 30, error_code, error, traceback, ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry_edited(job_id bigint, payload jsonb, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    old    jobherd.history;
    number bigint;
BEGIN
    SELECT * INTO old FROM jobherd.history h WHERE h.id = job_id ORDER BY h.finished_at DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    number := jobherd.enqueue_with(old.kind, retry_edited.payload, jsonb_strip_nulls(jsonb_build_object(
        'queue', old.queue, 'priority', old.priority, 'max_attempts', old.max_attempts, 'timeout', old.timeout, 'tenant', (old.extras).tenant,
        'webhook', (old.extras).webhook, 'set_off_by', old.id, 'traceparent', (old.extras).traceparent)), (old.extras).payload_bytes);
    INSERT INTO jobherd.demands (job, cost) SELECT number, d.cost FROM jobherd.demands d WHERE d.job = old.id;
    PERFORM jobherd.note_unless_noted(actor, 'edit', jsonb_build_object('job', old.id, 'new', number), reason);
    RETURN number;
END $$;
