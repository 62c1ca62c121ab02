-- Two functions about the sessions of worker processes, both run by the caller's own rights.
--
-- pg_stat_activity hides the details of another role's session, and of the caller's own if its login role has become another role
-- (ALTER ROLE ... SET role). PostgreSQL also checks the login role when one session ends another. So both functions look as the
-- current role first, and then as the login role.

CREATE FUNCTION jobherd.session_started() RETURNS timestamptz LANGUAGE plpgsql AS $$
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

-- Ends the session with this process id and start time. Returns 'gone' if there is no such session, 'told' if it was told to end, and
-- 'refused' if the caller must not end it. A session whose start time is hidden may be the one, so it counts as refused.
-- A refusal must not raise: the statement that calls this one also has other jobs to give back.
CREATE FUNCTION jobherd.end_session(pid integer, started timestamptz) RETURNS text LANGUAGE plpgsql AS $$
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
