-- The fleet: supervisors, their child processes, and the kinds that their handlers declare. Also how the
-- database session of a child process is identified and ended.

-- A session of a remote worker is a row here as well, whose lease a gateway renews (04_remote_sessions.sql).
CREATE TABLE jobherd.supervisors (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host        text        NOT NULL,
    machine     text        NOT NULL,                   -- boot id and pid namespace: where a pid has a meaning
    pid         integer     NOT NULL,
    pid_started bigint      NOT NULL,                   -- clock ticks since boot: tells a pid from its reuse
    version     text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    facts       jsonb,                                  -- the last report about itself and its child processes
    facts_at    timestamptz,                            -- times in it are seconds before this: no host's clock matters
    -- Null for a supervisor. Each statement that lists or counts supervisors must query via IS NULL.
    via         bigint,                                 -- the supervisor whose gateway serves the session
    attached    integer,                                -- the number of gateways that have served it: the fence between them
    principal   text,                                   -- the authenticated client: no other client may resume the session
    CONSTRAINT supervisors_session_has_a_gateway CHECK (
        (via IS NULL) = (attached IS NULL) AND (via IS NULL) = (principal IS NULL))
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
COMMENT ON TABLE jobherd.supervisors IS
    'Registered supervisors and sessions of remote workers, with their leases. When a lease has expired, '
    'a supervisor reclaims the jobs.';
COMMENT ON COLUMN jobherd.supervisors.via IS
    'The supervisor whose gateway serves this session of a remote worker; null: a supervisor.';

CREATE TABLE jobherd.children (
    id                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    supervisor          bigint      NOT NULL,
    incarnation         integer     NOT NULL,           -- count of forks: names a child before it connects
    slot                smallint    NOT NULL,
    kind                text        NOT NULL,
    pid                 integer     NOT NULL,
    pid_started         bigint      NOT NULL,
    backend_pid         integer     NOT NULL DEFAULT pg_backend_pid(),   -- 0: a pooler shares it with other clients
    backend_started     timestamptz NOT NULL,
    started_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    transaction_pid     integer,                        -- the second session, for the transactions of its jobs: a
    transaction_started timestamptz,                    -- process that releases the child's jobs ends it first
    UNIQUE (supervisor, incarnation)
);
COMMENT ON TABLE jobherd.children IS 'Child processes of the supervisors, each with its database sessions.';

CREATE TABLE jobherd.kinds (
    name           text COLLATE "C" PRIMARY KEY,
    queue          text COLLATE "C" NOT NULL,
    priority       smallint         NOT NULL,
    max_attempts   smallint         NOT NULL,
    max_crashes    smallint         NOT NULL,
    keep_completed integer          NOT NULL,           -- days
    keep_failed    integer          NOT NULL,           -- days
    seen_at        timestamptz      NOT NULL DEFAULT clock_timestamp(),
    redact         jsonb            NOT NULL DEFAULT '[]',   -- paths that @handler(redact=...) hides on the dashboard
    partition_by   text[],                              -- path to a field of the payload; empty: the tenant; null: no partitions
    signature      text,                                -- parameters of the handler, as JSON, for the form of the dashboard
    CONSTRAINT kinds_redact_is_a_list CHECK (jsonb_typeof(redact) = 'array')
);
COMMENT ON TABLE jobherd.kinds IS
    'What handlers declare. Child processes write it when they have loaded them.';

-- Returns when this session's backend started. pg_stat_activity hides the details of another role's
-- session, and of the caller's own if its login role has become another role (ALTER ROLE ... SET
-- role). So this function and `end_session` query as the current role first, then as the login role.
CREATE FUNCTION jobherd.session_started()
RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    role    CONSTANT text := current_setting('role');
    started timestamptz;
BEGIN
    SELECT a.backend_start INTO started FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_backend_pid();
    IF started IS NULL AND role <> 'none' THEN
        PERFORM set_config('role', 'none', true);
        SELECT a.backend_start INTO started FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_backend_pid();
        PERFORM set_config('role', role, true);
    END IF;
    RETURN started;
END $$;

-- Ends the session with this process id and start time. Returns 'gone' if there is no such session,
-- 'told' if it was told to end, and 'refused' if the caller must not end it. A session whose start
-- time is hidden may be the one, so it counts as refused. A refusal must not raise: the statement
-- that calls this function also has other jobs to release.
CREATE FUNCTION jobherd.end_session(pid integer, started timestamptz)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    role CONSTANT text := current_setting('role');
    fate text := 'refused';
    seen timestamptz;
BEGIN
    FOR way IN 1..CASE role WHEN 'none' THEN 1 ELSE 2 END LOOP
        IF way = 2 THEN
            PERFORM set_config('role', 'none', true);
        END IF;
        SELECT a.backend_start INTO seen FROM pg_catalog.pg_stat_activity a WHERE a.pid = end_session.pid;
        IF NOT FOUND OR seen <> started THEN
            fate := 'gone';
        ELSIF seen = started THEN
            BEGIN
                PERFORM pg_catalog.pg_terminate_backend(end_session.pid);
                fate := 'told';
            EXCEPTION
                WHEN insufficient_privilege THEN NULL;
            END;
        END IF;
        IF way = 2 THEN
            PERFORM set_config('role', role, true);
        END IF;
        EXIT WHEN fate <> 'refused';
    END LOOP;
    RETURN fate;
END $$;
