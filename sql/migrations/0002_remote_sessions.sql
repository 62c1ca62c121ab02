-- Sessions of remote workers: workers on hosts without access to the database, which a supervisor's
-- gateway serves over gRPC.
--
-- A session is a row of `supervisors` whose lease a gateway renews, with one row of `children`, of
-- kind `remote`. So the claims of a remote worker are claimed, fenced, settled, canceled and reclaimed
-- like all others, also by supervisors of earlier versions.

-- Null for a supervisor, also for one of an earlier version that runs beside this one. Each statement
-- that lists or counts supervisors must query via IS NULL.
ALTER TABLE jobherd.supervisors
    ADD COLUMN via       bigint,                        -- the supervisor whose gateway serves the session
    ADD COLUMN attached  integer,                       -- the number of gateways that have served it: the fence between them
    ADD COLUMN principal text,                          -- the authenticated client: no other client may resume the session
    ADD CONSTRAINT supervisors_session_has_a_gateway CHECK (
        (via IS NULL) = (attached IS NULL) AND (via IS NULL) = (principal IS NULL));
COMMENT ON TABLE jobherd.supervisors IS
    'Registered supervisors and sessions of remote workers, with their leases. When a lease has expired, '
    'a supervisor reclaims the jobs.';
COMMENT ON COLUMN jobherd.supervisors.via IS
    'The supervisor whose gateway serves this session of a remote worker; null: a supervisor.';

-- Time that a remote worker asked for at another gateway than the one that serves its session. The
-- latter reads it before it takes a job back. Rows of a session end with the session.
CREATE TABLE jobherd.extensions (
    session    bigint      NOT NULL REFERENCES jobherd.supervisors ON DELETE CASCADE,
    token      bigint      NOT NULL,                    -- of the job's claim
    job        bigint      NOT NULL,
    expires_at timestamptz NOT NULL,                    -- the job's time lasts at least until then
    PRIMARY KEY (session, token, job)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE jobherd.extensions IS
    'Time that remote workers asked for at another gateway than the one that serves their session.';

-- Locks a session until the end of the transaction, and raises an error if another gateway serves it,
-- or if it has ended. The first statement of each transaction in which a gateway acts without a request
-- of the worker. Otherwise a gateway that was frozen could take back jobs that run on through another.
CREATE FUNCTION jobherd.hold_session(session bigint, attached integer)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM jobherd.supervisors s WHERE s.id = session AND s.attached = hold_session.attached FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'jobherd.hold_session: another gateway serves session %, or it has ended', session
            USING ERRCODE = 'JHSES';
    END IF;
END $$;
