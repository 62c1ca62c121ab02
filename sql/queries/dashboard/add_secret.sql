-- Create a secret of the dashboard unless there is one younger than %(rotate)s seconds. Delete the secrets that
-- were replaced a whole rotation ago. Run by the dashboard.
WITH gone AS (
    DELETE FROM jobherd.dashboard_secrets s WHERE s.made_at < clock_timestamp() - 2 * make_interval(secs => %(rotate)s::double precision)
)
INSERT INTO jobherd.dashboard_secrets (made_at)
SELECT clock_timestamp()
 WHERE NOT EXISTS (SELECT FROM jobherd.dashboard_secrets s WHERE s.made_at > clock_timestamp() - make_interval(secs => %(rotate)s::double precision))
