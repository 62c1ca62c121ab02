-- The secrets by which the dashboard signs sessions and forms. They were derived from the tokens, so the holder of one token could compute the key of every session,
-- and anyone could test guesses of a token against the form of the login page. PostgreSQL makes each secret, so no statement carries one.
CREATE TABLE jobherd.page_secrets (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    secret  bytea       NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex') CHECK (octet_length(secret) = 32),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Sessions that ended by a logout before their time. A row is needed until its session would have expired.
CREATE TABLE jobherd.page_logouts (
    session text        PRIMARY KEY,
    until   timestamptz NOT NULL
);

-- End all sessions of the dashboard: cookies and forms signed by the old secrets are void. Supervisors read the new secret within 2 s.
CREATE FUNCTION jobherd.end_page_sessions(actor text DEFAULT NULL, reason text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM jobherd.page_secrets;
    DELETE FROM jobherd.page_logouts;
    INSERT INTO jobherd.page_secrets DEFAULT VALUES;
    PERFORM jobherd.note_audit(end_page_sessions.actor, 'end sessions', '{}', end_page_sessions.reason);
END $$;
