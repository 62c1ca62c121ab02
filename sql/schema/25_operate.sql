-- Fleet commands, the audit log, bulk actions and webhooks. Also the records of an application's own
-- tables whose process has died (table `table_ends`).

-- The supervisor is notified of a command and also queries at each renewal of its lease. It takes each
-- command once, and writes the answer into the row. One that was not taken within 30 s, by the
-- database's clock, is rejected and never executed.
CREATE TABLE jobherd.fleet_commands (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    supervisor bigint NOT NULL,                         -- no reference: the answer outlives the supervisor
    name       text COLLATE "C" NOT NULL,
    arguments  jsonb NOT NULL DEFAULT '{}',
    asked_by   text  NOT NULL,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_at   timestamptz,
    done_at    timestamptz,
    answer     jsonb,
    error      text,
    CONSTRAINT fleet_commands_name_is_a_word CHECK (name ~ '^[a-z][a-z_]{0,39}$'),
    CONSTRAINT fleet_commands_say_how_they_ended CHECK ((done_at IS NULL) = (answer IS NULL AND error IS NULL))
);
COMMENT ON TABLE jobherd.fleet_commands IS
    'Fleet commands: what a supervisor was asked to do, and its answer.';
CREATE INDEX fleet_commands_of_supervisor ON jobherd.fleet_commands (supervisor, id);

CREATE TABLE jobherd.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text NOT NULL,                               -- as the caller says
    role   name NOT NULL,                               -- as the database knows: the caller cannot choose it
    action text COLLATE "C" NOT NULL,
    target jsonb NOT NULL DEFAULT '{}',
    reason text
);
COMMENT ON TABLE jobherd.audit IS 'The audit log: who did what, and when.';
CREATE INDEX audit_by_actor ON jobherd.audit (actor, id);
CREATE INDEX audit_by_action ON jobherd.audit (action, id);

-- Runs as the owner: a role may act without the right to read what others did.
CREATE FUNCTION jobherd.note_audit(
    actor text, action text, target jsonb DEFAULT '{}', reason text DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted bigint;
BEGIN
    INSERT INTO jobherd.audit (actor, role, action, target, reason)
    VALUES (left(coalesce(nullif(note_audit.actor, ''), session_user), 200), session_user,
            left(coalesce(note_audit.action, '?'), 100),
            coalesce(note_audit.target, '{}'), left(nullif(note_audit.reason, ''), 2000))
    RETURNING id INTO noted;
    PERFORM set_config('jobherd.noted', 'yes', true);
    RETURN noted;
END $$;
COMMENT ON FUNCTION jobherd.note_audit(text, text, jsonb, text) IS
    'Writes an audit entry in the transaction of its action, and returns its number. The functions that '
    'act write their own entry, except after this one in the same transaction: many actions as one get '
    'one entry.';

-- Writes the audit entry of a function, unless the caller wrote one in this transaction. Only a role
-- that may call note_audit is believed: any role can make the setting. Another role's entry has its
-- own name, and only actions that such a role may take.
CREATE FUNCTION jobherd.note_unless_noted(actor text, action text, target jsonb, reason text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    operates CONSTANT boolean := has_function_privilege(coalesce(nullif(current_setting('role', true), 'none'),
                                                                 session_user)::name,
                                                        'jobherd.note_audit(text, text, jsonb, text)', 'EXECUTE');
    named text := nullif(note_unless_noted.actor, '');
BEGIN
    IF operates AND current_setting('jobherd.noted', true) = 'yes' THEN
        RETURN;
    END IF;
    IF NOT operates THEN
        IF note_unless_noted.action NOT IN ('cancel', 'retry', 'resume') THEN
            RAISE EXCEPTION 'jobherd: role % must not write % to the audit log', quote_ident(session_user),
                quote_literal(left(note_unless_noted.action, 100))
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        named := CASE WHEN note_unless_noted.action = 'resume' AND named = 'maintenance' THEN named END;
    END IF;
    INSERT INTO jobherd.audit (actor, role, action, target, reason)
    VALUES (left(coalesce(named, session_user), 200), session_user, note_unless_noted.action,
            note_unless_noted.target, left(nullif(note_unless_noted.reason, ''), 2000));
END $$;

-- Writes logins, logouts and wrong tokens of a dashboard, whose role may not call note_audit.
CREATE FUNCTION jobherd.note_visit(actor text, action text, target jsonb)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (note_visit.actor LIKE 'dashboard:%'
        AND note_visit.action IN ('log in', 'log out', 'refuse login', 'limit logins')) IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd.note_visit: % is not a visit of the dashboard',
            quote_nullable(left(note_visit.action, 100))
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN jobherd.note_audit(note_visit.actor, note_visit.action, note_visit.target);
END $$;

-- Deletes old audit entries and no others: a worker's role may not erase entries. At least a day is
-- kept, as the setting audit_keep requires.
CREATE FUNCTION jobherd.drop_audit(keep double precision, most integer)
RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    -- Numbers follow the time, except for the length of a transaction: only the first entries are read.
    DELETE FROM jobherd.audit
     WHERE id IN (SELECT first.id
                    FROM (SELECT a.id, a.at FROM jobherd.audit a ORDER BY a.id LIMIT drop_audit.most) AS first
                   WHERE first.at < clock_timestamp() - make_interval(secs => greatest(drop_audit.keep, 86400)))
    RETURNING id
$$;

-- What a supervisor can do: supervisor/database/fleet_commands.py. A report that was requested within
-- the last second is not requested again, however many pages are open. A session of a remote worker is not a supervisor: no process would take a fleet command to it.
CREATE FUNCTION jobherd.send_fleet_command(
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
        RAISE EXCEPTION 'jobherd.send_fleet_command: supervisor % is not there: it has exited, or its lease has expired',
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
                HINT = 'Wait until it has; a fleet command that it does not take within 30 s is rejected.';
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
COMMENT ON FUNCTION jobherd.send_fleet_command(bigint, text, jsonb, text, text) IS
    'Sends a fleet command to a supervisor, for example drain, add, remove, reload, report. Returns its '
    'id in jobherd.fleet_commands.';

-- The dashboard works on a bulk action in slices. Each slice is a transaction that also writes here
-- how far it came, so a process that continues after another one died does nothing twice.
CREATE TABLE jobherd.bulks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action     text COLLATE "C" NOT NULL,
    value      text,                                    -- the priority, or the time
    wanted     jsonb NOT NULL,                          -- which jobs: a filter, or {"ids": [...]}
    actor      text NOT NULL,
    reason     text,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expected   integer NOT NULL,                        -- jobs that matched at first,
    at_least   boolean NOT NULL,                        -- or more
    reached    bigint NOT NULL,                         -- jobs with this id and higher ones are done
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    done       integer NOT NULL DEFAULT 0,
    refused    jsonb NOT NULL DEFAULT '{}',             -- how many jobs, by reason
    stopped_by text,
    ended_at   timestamptz,
    error      text,
    CONSTRAINT bulks_action_is_known CHECK (action IN ('retry', 'cancel', 'delete', 'reprioritize', 'reschedule')),
    CONSTRAINT bulks_value_is_given CHECK ((value IS NOT NULL) = (action IN ('reprioritize', 'reschedule')))
);
COMMENT ON TABLE jobherd.bulks IS 'Actions on many jobs: the current ones and recent ones.';
CREATE INDEX bulks_going_on ON jobherd.bulks (id) WHERE ended_at IS NULL;

-- Trigger on `history` (enable_webhooks). A job of the kind jobs:webhook makes the call. The
-- transaction that finishes the first job enqueues it, in the same queue: a supervisor that serves
-- that queue makes the calls. It names the end of the job and holds nothing of its result: the
-- worker reads that from the history, so nothing is signed that only a payload claims.
CREATE FUNCTION jobherd.call_webhook()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO jobherd.ready (kind, queue, priority, payload, extras)
    VALUES ('jobs:webhook', NEW.queue, NEW.priority,
            json_build_object(
                'url', (NEW.extras).webhook,
                'event', json_build_object(
                    'id', NEW.id, 'kind', NEW.kind, 'queue', NEW.queue, 'tenant', (NEW.extras).tenant,
                    'state', NEW.state,                     'code', NEW.error_code, 'attempts', NEW.attempts, 
                    'created_at', NEW.created_at, 'finished_at', NEW.finished_at)),
            jobherd.extras_of((NEW.extras).tenant, NULL, NULL, NEW.id, (NEW.extras).traceparent));
    RETURN NULL;
END $$;

-- Creates the trigger, as the owner. Cost: a trigger on `history` costs each settled job some hundred
-- nanoseconds, so it exists only where a supervisor has a secret for webhooks. Waits only 50 ms for the
-- lock: settlements wait behind it, for as long as the transaction of a caller of cancel() is open.
CREATE FUNCTION jobherd.enable_webhooks()
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;
    END IF;
    SET LOCAL lock_timeout = '50ms';  -- settlements wait behind this lock
    LOCK TABLE jobherd.history IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobherd.history'::regclass AND tgname = 'webhook') THEN
        RETURN false;  -- another maintenance process was faster
    END IF;
    CREATE TRIGGER webhook AFTER INSERT ON jobherd.history FOR EACH ROW WHEN ((NEW.extras).webhook IS NOT NULL)
        EXECUTE FUNCTION jobherd.call_webhook();
    RETURN true;
END $$;
COMMENT ON FUNCTION jobherd.enable_webhooks() IS
    'Enables webhooks. Returns false if they are already enabled. A supervisor with a webhook secret '
    'calls it.';

-- Records of an application's own table whose process has died. The supervisor writes a row: it
-- knows the cause and loads no handlers. A resetter takes it: it knows the table.
CREATE TABLE jobherd.table_ends (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind    text             NOT NULL,                  -- the name of the store
    record  bigint           NOT NULL,
    token   bigint           NOT NULL,                  -- of the claim: the record's started_at, in microseconds
    outcome text             NOT NULL,
    crashed boolean          NOT NULL,
    delay   double precision NOT NULL,
    error   text,
    log     text,                                       -- what it printed and logged, as JSON: output, entries
    ran     double precision,                           -- seconds
    at      timestamptz      NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE jobherd.table_ends IS
    'Records of an application''s table whose process died, for the resetter of that table.';
