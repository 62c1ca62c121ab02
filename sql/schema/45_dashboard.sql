-- Login sessions of the dashboard: its secrets and logouts.

-- The secrets by which the dashboard signs sessions and forms. PostgreSQL makes each secret, so no
-- statement carries one. A secret derived from a token would let its holder sign any session.
CREATE TABLE jobherd.dashboard_secrets (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    secret  bytea       NOT NULL
                        DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
                        CHECK (octet_length(secret) = 32),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE jobherd.dashboard_secrets IS 'Secrets by which the dashboard signs sessions and forms.';

CREATE TABLE jobherd.dashboard_logouts (
    session text        PRIMARY KEY,
    until   timestamptz NOT NULL                        -- when the session would have expired
);
COMMENT ON TABLE jobherd.dashboard_logouts IS 'Dashboard sessions that a logout ended before they expired.';

CREATE FUNCTION jobherd.end_dashboard_sessions(actor text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM jobherd.dashboard_secrets;
    DELETE FROM jobherd.dashboard_logouts;
    INSERT INTO jobherd.dashboard_secrets DEFAULT VALUES;
    PERFORM jobherd.note_audit(end_dashboard_sessions.actor, 'end sessions', '{}', end_dashboard_sessions.reason);
END $$;
COMMENT ON FUNCTION jobherd.end_dashboard_sessions(text, text) IS
    'Ends all sessions of the dashboard: cookies and forms signed by the old secrets become invalid. '
    'Supervisors read the new secret within 2 s.';
