-- Sessions of remote workers: workers on hosts without access to the database, which a supervisor's
-- gateway serves over gRPC. Also the idempotency keys of requests by which producers enqueue through a
-- gateway.
--
-- A session is a row of `supervisors` whose lease a gateway renews, with one row of `children`, of
-- kind `remote`. So the jobs of a remote worker are claimed, fenced, settled, canceled and reclaimed
-- like all others.

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

-- A request that is sent again with its key enqueues nothing, and gets the ids of the first one.
CREATE TABLE jobherd.enqueue_keys (
    principal  text        NOT NULL,                    -- the authenticated client: its keys are its own
    key        text        NOT NULL,
    digest     bytea       NOT NULL,                    -- of the jobs: other jobs under the same key are an error
    ids        bigint[]    NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (principal, key)
)
-- A row is written with its key and once more with its ids: room in the page keeps both in one.
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE jobherd.enqueue_keys IS
    'Idempotency keys of requests that enqueued jobs through a gateway. Maintenance deletes them after 24 h.';
CREATE INDEX enqueue_keys_created_at ON jobherd.enqueue_keys (created_at);
