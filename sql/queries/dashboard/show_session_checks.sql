-- Show in one row what sessions of the dashboard are checked against: the secrets, newest first, the age of the
-- newest in seconds, and the sessions ended by a logout. An older secret is valid for %(session)s seconds after
-- its successor was created, so that a rotation ends no session. Run by the dashboard.
WITH known AS (
    SELECT s.id, s.secret, s.made_at, lead(s.made_at) OVER (ORDER BY s.id) AS replaced_at FROM jobherd.dashboard_secrets s
)
SELECT (SELECT coalesce(array_agg(k.secret ORDER BY k.id DESC), '{}') FROM known k
         WHERE k.replaced_at IS NULL OR k.replaced_at > clock_timestamp() - make_interval(secs => %(session)s::double precision)) AS secrets,
       (SELECT extract(epoch FROM clock_timestamp() - k.made_at)::double precision FROM known k WHERE k.replaced_at IS NULL) AS age,
       (SELECT coalesce(array_agg(l.session), '{}') FROM jobherd.dashboard_logouts l WHERE l.until > clock_timestamp()) AS ended
