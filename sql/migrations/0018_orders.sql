-- What operators do: orders to supervisors on whatever host, what supervisors say of themselves, and who did what.

-- Orders: what somebody wants of a supervisor. It hears of them by a notification, looks at each beat as well, takes each once and answers into
-- its row. One that nobody has taken within 30 s is refused, by the database's clock, and never carried out late.
CREATE TABLE jobherd.orders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    supervisor bigint NOT NULL,                     -- no reference: the answer outlives whoever has left because of it
    name       text COLLATE "C" NOT NULL,
    arguments  jsonb NOT NULL DEFAULT '{}',
    asked_by   text NOT NULL,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_at   timestamptz,
    done_at    timestamptz,
    answer     jsonb,
    error      text,
    CONSTRAINT orders_name_is_a_word CHECK (name ~ '^[a-z][a-z_]{0,39}$'),
    CONSTRAINT orders_say_how_they_ended CHECK ((done_at IS NULL) = (answer IS NULL AND error IS NULL))
);
CREATE INDEX orders_of_supervisor ON jobherd.orders (supervisor, id);

-- What a supervisor has last said of itself and its children, and when: supervisor/observe/fleet_report.py. Times in it are spans up to facts_at, so that
-- no host's clock matters.
ALTER TABLE jobherd.supervisors ADD COLUMN facts jsonb, ADD COLUMN facts_at timestamptz;

-- Who did what, and when. The actor is what the caller says of itself; the role is what the database knows of it, and cannot be made up.
CREATE TABLE jobherd.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text NOT NULL,
    role   name NOT NULL,
    action text COLLATE "C" NOT NULL,
    target jsonb NOT NULL DEFAULT '{}',
    reason text
);
CREATE INDEX audit_by_actor ON jobherd.audit (actor, id);
CREATE INDEX audit_by_action ON jobherd.audit (action, id);

-- Note an action in the transaction that does it, and return the number of the note. The functions below that do something note it by
-- themselves, unless it was noted here before in the same transaction: whoever does many things as one says so once. It runs as its owner,
-- so that a role may act which may not read what others did.
CREATE FUNCTION jobherd.note_audit(actor text, action text, target jsonb DEFAULT '{}', reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    noted bigint;
BEGIN
    INSERT INTO jobherd.audit (actor, role, action, target, reason)
    VALUES (left(coalesce(nullif(note_audit.actor, ''), session_user), 200), session_user, left(coalesce(note_audit.action, '?'), 100),
            coalesce(note_audit.target, '{}'), left(nullif(note_audit.reason, ''), 2000))
    RETURNING id INTO noted;
    PERFORM set_config('jobherd.noted', 'yes', true);
    RETURN noted;
END $$;

CREATE FUNCTION jobherd.note_unless_noted(actor text, action text, target jsonb, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('jobherd.noted', true) IS DISTINCT FROM 'yes' THEN
        INSERT INTO jobherd.audit (actor, role, action, target, reason)
        VALUES (left(coalesce(nullif(note_unless_noted.actor, ''), session_user), 200), session_user, note_unless_noted.action,
                note_unless_noted.target, left(nullif(note_unless_noted.reason, ''), 2000));
    END IF;
END $$;

-- Ask a supervisor for something; returns the order's id. What it knows: supervisor/database/fleet_commands.py. A report that was asked for within the last
-- second is not asked for again: however many look on, it is made once.
CREATE FUNCTION jobherd.order(supervisor bigint, name text, arguments jsonb DEFAULT '{}', asked_by text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
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
        RAISE EXCEPTION 'jobherd.order: name % is not a word like "drain"', coalesce(quote_literal(left(what, 120)), 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example drain, add, remove, reload, report.';
    ELSIF jsonb_typeof(given) <> 'object' OR octet_length(given::text) > 10000 THEN
        RAISE EXCEPTION 'jobherd.order: arguments must be a JSON object of at most 10,000 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.host || '/' || s.pid INTO place FROM jobherd.supervisors s WHERE s.id = whom AND s.lease_until > clock_timestamp();
    IF place IS NULL THEN
        RAISE EXCEPTION 'jobherd.order: supervisor % is not there: it has left, or its lease has lapsed', coalesce(whom::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'jobherd fleet lists those that are.';
    END IF;
    IF what = 'report' THEN
        SELECT o.id INTO number FROM jobherd.orders o
         WHERE o.supervisor = whom AND o.name = 'report' AND o.asked_at > clock_timestamp() - interval '1 s'
         ORDER BY o.id DESC LIMIT 1;
        IF number IS NOT NULL THEN RETURN number; END IF;
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM jobherd.orders o WHERE o.supervisor = whom AND o.done_at IS NULL LIMIT 100) AS open) >= 100 THEN
        RAISE EXCEPTION 'jobherd.order: supervisor % has 100 orders that it has not answered yet', whom
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Wait until it has; what it has not taken is refused after 30 s.';
    END IF;
    INSERT INTO jobherd.orders (supervisor, name, arguments, asked_by) VALUES (whom, what, given, who) RETURNING id INTO number;
    IF what <> 'report' THEN
        PERFORM jobherd.note_unless_noted(who, what, given || jsonb_build_object('supervisor', whom, 'process', place, 'order', number), why);
    END IF;
    PERFORM pg_notify('jobherd_jobs', '@order:' || whom);
    RETURN number;
END $$;

-- From here on: what operators did before, with a note of it. Without an actor it is the session's user.
CREATE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF row_security_active('jobherd.ready'::regclass) THEN
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
                                     state, queue, kind, payload, extras, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), current_date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM pg_notify('jobherd_done', job_id || '=' || answer);
        ELSE
            -- The whole batch is found through its jobs: running is as small as the fleet.
            UPDATE jobherd.running SET cancelled = array_append(array_remove(cancelled, job_id), job_id)
             WHERE EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = job_id);
            IF FOUND THEN
                did := true;
                answer := 'cancelling';
                PERFORM pg_notify('jobherd_jobs', '@cancel');
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

CREATE OR REPLACE FUNCTION jobherd.cancel(job_id bigint) RETURNS text LANGUAGE sql AS $$ SELECT jobherd.cancel_as(job_id, NULL) $$;

CREATE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF row_security_active('jobherd.ready'::regclass) THEN
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
            INSERT INTO jobherd.ready (id, created_at, run_at, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
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

CREATE OR REPLACE FUNCTION jobherd.retry(job_id bigint) RETURNS text LANGUAGE sql AS $$ SELECT jobherd.retry_as(job_id, NULL) $$;

-- What a gate is called in a note.
CREATE FUNCTION jobherd.gate_as_target(scope text, name text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(scope, CASE WHEN scope = 'all' THEN 'everything' ELSE name END)
$$;

CREATE OR REPLACE FUNCTION jobherd.pause(queue text DEFAULT NULL, reason text DEFAULT NULL, kind text DEFAULT NULL, resume_at timestamptz DEFAULT NULL,
                                         actor text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    gate   record;
    paused boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('pause', queue, kind);
    IF pause.resume_at <= clock_timestamp() OR NOT isfinite(pause.resume_at) THEN
        RAISE EXCEPTION 'jobherd.pause: resume_at % is not in the future', pause.resume_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to pause until somebody resumes.';
    END IF;
    SELECT g.paused_at IS NOT NULL INTO paused FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    INSERT INTO jobherd.gates AS g (scope, name, paused_at, paused_by, reason, resume_at)
    VALUES (gate.scope, gate.name, clock_timestamp(), coalesce(actor, session_user), pause.reason, pause.resume_at)
    ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
       SET paused_at = coalesce(g.paused_at, excluded.paused_at), paused_by = excluded.paused_by,
           reason = coalesce(excluded.reason, g.reason), resume_at = excluded.resume_at;
    PERFORM jobherd.note_unless_noted(pause.actor, 'pause',
        jobherd.gate_as_target(gate.scope, gate.name) || jsonb_strip_nulls(jsonb_build_object('resume_at', pause.resume_at)), pause.reason);
    RETURN NOT coalesce(paused, false);
END $$;

DROP FUNCTION jobherd.resume(text, text);
CREATE FUNCTION jobherd.resume(queue text DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    gate record;
    did  boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('resume', queue, kind);
    UPDATE jobherd.gates g SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL
     WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NOT NULL AND g.max_running IS NOT NULL;
    did := FOUND;
    IF NOT did THEN
        DELETE FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NULL;
        did := FOUND;
    END IF;
    IF did THEN
        PERFORM jobherd.note_unless_noted(resume.actor, 'resume', jobherd.gate_as_target(gate.scope, gate.name), resume.reason);
    END IF;
    RETURN did;
END $$;

CREATE OR REPLACE FUNCTION jobherd.set_cap(queue text DEFAULT NULL, max_running integer DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    gate   record;
    before integer;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('set_cap', queue, kind);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.set_cap: everything together has no cap'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Cap a queue or a kind, or start fewer workers.';
    ELSIF set_cap.max_running < 1 THEN
        RAISE EXCEPTION 'jobherd.set_cap: max_running % is not a number from 1', set_cap.max_running
            USING ERRCODE = 'invalid_parameter_value', HINT = 'To let nothing run, pause it: SELECT jobherd.pause(...).';
    END IF;
    SELECT g.max_running INTO before FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    IF set_cap.max_running IS NOT NULL THEN
        INSERT INTO jobherd.gates AS g (scope, name, max_running, capped_at, capped_by)
        VALUES (gate.scope, gate.name, set_cap.max_running, clock_timestamp(), coalesce(actor, session_user))
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET max_running = excluded.max_running, capped_at = coalesce(g.capped_at, excluded.capped_at), capped_by = excluded.capped_by;
    ELSE
        UPDATE jobherd.gates g SET max_running = NULL, capped_at = NULL, capped_by = NULL
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NOT NULL AND g.paused_at IS NOT NULL;
        DELETE FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NULL;
    END IF;
    IF set_cap.max_running IS DISTINCT FROM before THEN
        PERFORM jobherd.note_unless_noted(set_cap.actor, 'cap',
            jobherd.gate_as_target(gate.scope, gate.name) || jsonb_build_object('max_running', set_cap.max_running, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
