-- Jobs move as whole rows. Each move named the columns of a job, so a worker of an older version would have
-- failed at, or lost, a column that a later version adds. A claim now keeps the row as it was in `ready`:
-- `attempts` in `running` is the count before the claim, and a reader adds the current attempt.
UPDATE jobherd.running c
   SET jobs = ARRAY(SELECT jsonb_populate_record(j, jsonb_build_object('attempts', greatest(j.attempts - 1, 0))) FROM unnest(c.jobs) AS j);

CREATE OR REPLACE VIEW jobherd.jobs AS
SELECT one.id, one.kind, one.queue, one.priority, one.state, one.attempts,
       coalesce(one.max_attempts, (SELECT k.max_attempts FROM jobherd.kinds k WHERE k.name = one.kind), 5::smallint) AS max_attempts,
       one.crashes, one.payload, one.result, one.error, one.error_code, one.run_at, one.created_at, one.started_at, one.finished_at, one.progress,
       coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                            'attempt', a.attempt, 'outcome', a.outcome, 'started_at', a.started_at, 'finished_at', a.finished_at,
                            'error_code', a.error_code, 'error_class', a.usage ->> 'error_class', 'error', a.error, 'traceback', a.traceback,
                            'ran_on', a.ran_on,
                            'usage', CASE WHEN jsonb_typeof(a.usage) = 'object' THEN nullif(a.usage - 'error_class', '{}') ELSE a.usage END,
                            'post_mortem', a.post_mortem, 'token', a.token)) ORDER BY a.finished_at, a.token)
                   FROM (SELECT * FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1000) AS a), '[]')
       || CASE WHEN one.finished_at IS NULL THEN '[]'
               ELSE jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                        'attempt', one.attempts, 'outcome', one.state, 'started_at', one.started_at, 'finished_at', one.finished_at,
                        'error_code', one.error_code, 'error_class', one.usage ->> 'error_class', 'error', one.error,
                        'traceback', one.traceback, 'ran_on', one.ran_on,
                        'usage', CASE WHEN jsonb_typeof(one.usage) = 'object' THEN nullif(one.usage - 'error_class', '{}') ELSE one.usage END,
                        'post_mortem', one.post_mortem, 'token', one.token))) END AS history,
       one.good_until, one.timeout, one.token, one.ran_on, (one.extras).tenant AS tenant, (one.extras).webhook AS webhook,
       octet_length((one.extras).payload_bytes) || ' bytes, ' || encode(substr((one.extras).payload_bytes, 1, 16), 'hex')
       || CASE WHEN octet_length((one.extras).payload_bytes) > 16 THEN '...' ELSE '' END AS payload_bytes,
       (one.extras).set_off_by AS set_off_by, (one.extras).traceparent AS traceparent,
       CASE WHEN one.finished_at IS NOT NULL THEN one.usage ->> 'error_class'
            WHEN one.error IS NOT NULL
            THEN (SELECT t.usage ->> 'error_class' FROM jobherd.attempts t WHERE t.job = one.id ORDER BY t.token DESC LIMIT 1) END AS error_class
  FROM (SELECT r.id, r.kind, r.queue, r.priority, CASE WHEN r.attempts > 0 THEN 'retrying' ELSE 'ready' END AS state, r.attempts,
               r.max_attempts, r.crashes, r.payload, NULL::json AS result, r.last_error ->> 'message' AS error,
               r.last_error ->> 'code' AS error_code, r.run_at, r.created_at, NULL::timestamptz AS started_at,
               NULL::timestamptz AS finished_at, NULL::jsonb AS progress, r.good_until, r.timeout, NULL::bigint AS token,
               NULL::text AS traceback, NULL::text AS ran_on, NULL::jsonb AS usage, NULL::jsonb AS post_mortem, r.extras
          FROM jobherd.ready r
        UNION ALL
        SELECT s.id, s.kind, s.queue, s.priority, CASE WHEN s.attempts > 0 THEN 'retrying' ELSE 'scheduled' END, s.attempts,
               s.max_attempts, s.crashes, s.payload, NULL, s.last_error ->> 'message', s.last_error ->> 'code', s.run_at, s.created_at, NULL,
               NULL, NULL, s.good_until, s.timeout, NULL, NULL, NULL, NULL, NULL, s.extras
          FROM jobherd.scheduled s
        UNION ALL
        SELECT j.id, j.kind, j.queue, j.priority, 'running', (j.attempts + 1)::smallint,  -- the claim keeps the count before it
               j.max_attempts, j.crashes, j.payload, NULL, j.last_error ->> 'message', j.last_error ->> 'code', j.run_at, j.created_at,
               c.claimed_at, NULL, (SELECT p.progress FROM jobherd.progress p WHERE p.job = j.id AND p.token = c.token), j.good_until,
               j.timeout, c.token, NULL,
               (SELECT s.host || '/' || w.pid FROM jobherd.children w JOIN jobherd.supervisors s ON s.id = w.supervisor WHERE w.id = c.child),
               NULL, NULL, j.extras
          FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
        UNION ALL
        SELECT h.id, h.kind, h.queue, h.priority, h.state, h.attempts, h.max_attempts, h.crashes, h.payload, h.result, h.error, h.error_code,
               h.run_at, h.created_at, h.started_at, h.finished_at, h.progress, NULL, h.timeout, h.token, h.traceback, h.ran_on, h.usage,
               h.post_mortem, h.extras
          FROM jobherd.history h) AS one;

CREATE OR REPLACE FUNCTION jobherd.claim_gated(supervisor bigint, child bigint, served text[], avoided text[], wanted integer, kinds text[], shares real[], limited text[], limits integer[], left_queue text, left_kind text, among bigint[], OUT token bigint, OUT queue text, OUT jobs jobherd.ready[], OUT more boolean) RETURNS SETOF record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    me          CONSTANT bigint := supervisor;
    shut_queues text[];                             -- paused or full, or not to be looked at again in this call
    shut_kinds  text[];
    gated       text[];                             -- kinds with a gate of any sort
    capped      text[];                             -- queues with a cap
    next        record;
    job         jobherd.ready;
    batch       jobherd.ready[];
    taken       bigint[] := '{}';
    aside       bigint[];
    weight      real;
    share       real;
    single       text;                               -- the kind of what is claimed alone
    own         integer;                            -- this supervisor's limit for the queue
    held        integer := 0;
    had         boolean;
    elsewhere   text;                               -- a queue whose rows are all in other hands
BEGIN
    PERFORM FROM jobherd.supervisors s WHERE s.id = me AND s.lease_until > clock_timestamp();
    IF NOT FOUND THEN RETURN; END IF;  -- the fence against a frozen host
    IF limited IS NULL AND NOT coalesce(array_to_string(served, ',') LIKE '%*%', false)
       AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope <> 'queue' OR g.max_running IS NOT NULL) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- What looks shut, at a glance and all at once, for there may be a cap for each of many queues. What looks open is looked at again under
    -- its lock, where the jobs that were claimed before the cap are counted too.
    SELECT coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind' AND g.shut), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'kind'), '{}'),
           coalesce(array_agg(g.name) FILTER (WHERE g.scope = 'queue' AND g.max_running IS NOT NULL), '{}')
      INTO shut_queues, shut_kinds, gated, capped
      FROM (SELECT g.scope, g.name, g.max_running, g.paused_at IS NOT NULL OR coalesce(u.jobs >= g.max_running, false) AS shut
              FROM jobherd.gates g LEFT JOIN (
                   SELECT 'queue' AS scope, r.queue AS name, count(*) AS jobs FROM jobherd.running r WHERE r.limited_kind IS NOT NULL GROUP BY r.queue
                    UNION ALL
                   SELECT 'kind', r.limited_kind, count(*) FROM jobherd.running r WHERE r.limited_kind IS NOT NULL GROUP BY r.limited_kind
                   ) AS u ON u.scope = g.scope AND u.name = g.name) AS g;
    shut_queues := shut_queues || coalesce(avoided, '{}');
    IF EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'all' AND g.paused_at IS NOT NULL) THEN
        RETURN;
    END IF;
    FOR turn IN 1..20 LOOP
        elsewhere := CASE WHEN turn = 20 THEN '*' ELSE elsewhere END;  -- not all was looked at: ask again
        -- The first job of what looks open, in the order of the served queues, priority and id: at the head of a queue, or parked.
        WITH RECURSIVE head AS (
            (SELECT r.queue, r.priority, r.id FROM jobherd.ready r ORDER BY r.queue, r.priority, r.id LIMIT 1)
            UNION ALL
            SELECT after.queue, after.priority, after.id
              FROM head h CROSS JOIN LATERAL (
                   SELECT r.queue, r.priority, r.id FROM jobherd.ready r WHERE r.queue > h.queue ORDER BY r.queue, r.priority, r.id LIMIT 1
                   ) AS after
        ), aside AS (
            (SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1)
            UNION ALL
            SELECT after.kind, after.queue, after.priority, after.id
              FROM aside a CROSS JOIN LATERAL (
                   SELECT p.kind, p.queue, p.priority, p.id FROM jobherd.parked p WHERE (p.kind, p.queue) > (a.kind, a.queue)
                    ORDER BY p.kind, p.queue, p.priority, p.id LIMIT 1
                   ) AS after
        )
        SELECT c.queue, c.kind, c.priority, c.id INTO next
          FROM (SELECT h.queue, NULL::text AS kind, h.priority, h.id FROM head h WHERE among IS NULL
                UNION ALL
                SELECT a.queue, a.kind, a.priority, a.id FROM aside a WHERE among IS NULL AND a.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT r.queue, NULL, r.priority, r.id FROM jobherd.ready r WHERE r.id = ANY (among) AND r.kind <> ALL (shut_kinds)
                UNION ALL
                SELECT p.queue, p.kind, p.priority, p.id FROM jobherd.parked p WHERE p.id = ANY (among) AND p.kind <> ALL (shut_kinds)) AS c
         WHERE c.queue <> ALL (shut_queues) AND jobherd.rank_queue(c.queue, served) IS NOT NULL
         ORDER BY jobherd.rank_queue(c.queue, served), c.priority, c.id
         LIMIT 1;
        EXIT WHEN NOT FOUND;

        own := limits[jobherd.rank_queue(next.queue, limited)];
        IF own IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(1, me || ' ' || next.queue, held);
            had := had AND (SELECT count(*) FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child
                             WHERE r.queue = next.queue AND r.limited_kind IS NOT NULL AND c.supervisor = me) < own;
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;
        IF next.queue = ANY (capped) THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(2, next.queue, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'queue' AND g.name = next.queue
                                          AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running));
            IF NOT had THEN
                shut_queues := shut_queues || next.queue;
                CONTINUE;
            END IF;
        END IF;

        IF next.kind IS NOT NULL THEN
            SELECT * INTO held, had FROM jobherd.lock_cap(3, next.kind, held);
            had := had AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = next.kind
                                          AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running));
            IF NOT had THEN
                shut_kinds := shut_kinds || next.kind;
                CONTINUE;
            END IF;
            DELETE FROM jobherd.parked p
             WHERE p.id = (SELECT o.id FROM jobherd.parked o WHERE o.kind = next.kind AND o.queue = next.queue AND (among IS NULL OR o.id = ANY (among))
                            ORDER BY o.kind, o.queue, o.priority, o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING * INTO job;
            IF NOT FOUND THEN
                shut_kinds := shut_kinds || next.kind;  -- being cancelled
                CONTINUE;
            END IF;
            batch := ARRAY[job];
            single := job.kind;
            EXIT;
        END IF;

        aside := '{}';
        weight := 0;
        FOR job IN SELECT r.* FROM jobherd.ready r WHERE r.queue = next.queue AND (r.priority, r.id) >= (next.priority, next.id)
                      AND (among IS NULL OR r.id = ANY (among))
                    ORDER BY r.priority, r.id LIMIT greatest(wanted, 100) FOR UPDATE SKIP LOCKED LOOP
            had := true;
            -- What is parked may come before it: choose anew. Before its cap is locked, for who finds a lock taken relies on its holder.
            EXIT WHEN cardinality(aside) > 0 AND cardinality(taken) = 0 AND job.kind <> ALL (shut_kinds);
            IF job.kind = ANY (gated) THEN
                IF cardinality(taken) > 0 THEN EXIT; END IF;
                IF job.kind <> ALL (shut_kinds) THEN
                    SELECT * INTO held, had FROM jobherd.lock_cap(3, job.kind, held);
                    IF NOT had OR EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = job.kind
                                             AND (g.paused_at IS NOT NULL OR jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running)) THEN
                        shut_kinds := shut_kinds || job.kind;
                    END IF;
                END IF;
                IF job.kind = ANY (shut_kinds) THEN
                    aside := aside || job.id;
                    CONTINUE;
                END IF;
                single := job.kind;
            ELSIF own IS NOT NULL OR next.queue = ANY (capped) THEN
                single := job.kind;
            ELSE
                share := CASE WHEN job.alone THEN 2 WHEN kinds IS NULL THEN 0
                              ELSE coalesce(shares[array_position(kinds, job.kind)], 1) END
                         + (pg_column_size(job.payload) + coalesce(pg_column_size(job.extras), 0))::real / 1000000::real;
                EXIT WHEN cardinality(taken) > 0 AND (weight >= 1 OR share >= 1 OR cardinality(taken) >= wanted);
                weight := weight + share;
            END IF;
            taken := taken || job.id;
            batch := batch || job;
            EXIT WHEN single IS NOT NULL;
        END LOOP;
        IF cardinality(aside) > 0 THEN
            -- A job whose id another parked job has gets a new one.
            WITH gone AS (DELETE FROM jobherd.ready WHERE id = ANY (aside) RETURNING ready AS job)
            INSERT INTO jobherd.parked
            SELECT p.*
              FROM gone g
             CROSS JOIN LATERAL jsonb_populate_record(g.job, CASE WHEN EXISTS (SELECT FROM jobherd.parked o WHERE o.id = (g.job).id)
                                                                  THEN jsonb_build_object('id', nextval('jobherd.job_ids')) ELSE '{}' END) AS p;
        END IF;
        IF cardinality(taken) > 0 THEN
            DELETE FROM jobherd.ready r WHERE r.id = ANY (taken);
            EXIT;
        ELSIF cardinality(aside) = 0 THEN
            shut_queues := shut_queues || next.queue;  -- all of it is locked
            elsewhere := next.queue;
        END IF;
    END LOOP;

    IF batch IS NOT NULL THEN
        INSERT INTO jobherd.running (child, token, queue, limited_kind, jobs)
        VALUES (claim_gated.child, nextval('jobherd.tokens'), next.queue, single, batch)
        RETURNING running.token, running.queue, running.jobs INTO token, queue, jobs;
        more := EXISTS (SELECT FROM jobherd.ready r WHERE r.queue = next.queue)
                OR EXISTS (SELECT FROM jobherd.parked p WHERE p.kind = single);
        -- Who found the lock taken, or no slot, may sleep by now: if there is more to take, somebody must be told.
        IF more AND single IS NOT NULL
           AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE ((g.scope = 'queue' AND g.name = next.queue) OR (g.scope = 'kind' AND g.name = single))
                              AND jobherd.count_running(g.scope, g.name, g.capped_at) >= g.max_running) THEN
            PERFORM jobherd.tell_sleepers(CASE WHEN single = ANY (gated) THEN '*' ELSE next.queue END);
        END IF;
    ELSE
        queue := elsewhere;
    END IF;
    IF (queue IS DISTINCT FROM left_queue AND (left_queue = ANY (capped) OR jobherd.rank_queue(left_queue, coalesce(limited, '{}')) IS NOT NULL))
       OR (single IS DISTINCT FROM left_kind AND left_kind = ANY (gated)) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN left_kind = ANY (gated) THEN '*' ELSE left_queue END);
    END IF;
    IF token IS NOT NULL OR queue IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION jobherd.reschedule(job_id bigint, run_at timestamp with time zone, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    due    CONSTANT timestamptz := run_at;
    why    CONSTANT text := reason;
    job    jobherd.ready;
    answer text;
BEGIN
    IF due IS NULL OR NOT isfinite(due) OR due <= '1900-01-01 00:00Z' OR due >= '9000-01-01 00:00Z' THEN
        RAISE EXCEPTION 'jobherd.reschedule: run_at % is not a time from 1900 to 9000', coalesce(due::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example now() + interval ''10 minutes''.';
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.ready r WHERE r.id = job_id RETURNING r.* INTO job;
        IF NOT FOUND THEN
            DELETE FROM jobherd.parked p WHERE p.id = job_id RETURNING p.* INTO job;
        END IF;
        IF NOT FOUND THEN
            DELETE FROM jobherd.scheduled s WHERE s.id = job_id
            RETURNING s.* INTO job;
        END IF;
        IF job.id IS NOT NULL THEN
            job.run_at := due;
            -- It is put in anew and not updated: who sleeps until the first one is due hears of rows that arrive.
            IF due > clock_timestamp() THEN
                INSERT INTO jobherd.scheduled SELECT job.*;
                answer := 'scheduled';
            ELSE
                job.run_at := greatest(due, job.created_at + interval '1 microsecond');  -- see the index ready_came_back
                INSERT INTO jobherd.ready SELECT job.*;
                answer := 'ready';
            END IF;
            PERFORM jobherd.note_unless_noted(actor, 'reschedule', jsonb_build_object('job', job_id, 'run_at', due), why);
            RETURN CASE WHEN job.attempts > 0 THEN 'retrying' ELSE answer END;
        END IF;
        SELECT j.state INTO answer FROM jobherd.jobs j WHERE j.id = job_id;
        EXIT WHEN answer IN ('running', 'completed', 'failed', 'cancelled', 'expired');
        answer := NULL;
    END LOOP;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    later  jobherd.ready;
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        DELETE FROM jobherd.scheduled s WHERE s.id = job_id RETURNING s.* INTO later;
        IF FOUND THEN
            later.run_at := now();
            INSERT INTO jobherd.ready SELECT later.* RETURNING 'ready' INTO answer;
        END IF;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30),
                       error_code, error, traceback, ran_on, usage, post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF did THEN
            DELETE FROM jobherd.cancels WHERE job = job_id;  -- a request about the run before this retry
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.waiting WHERE id = job_id;
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
