-- Store that a session of the dashboard has ended by a logout, for as long as its cookie would be valid. Deletes
-- rows that are no longer needed. Run by the dashboard.
WITH gone AS (
    DELETE FROM jobherd.dashboard_logouts l WHERE l.until < clock_timestamp()
)
INSERT INTO jobherd.dashboard_logouts (session, until) VALUES (%(session)s::text, to_timestamp(%(until)s::double precision)) ON CONFLICT DO NOTHING
