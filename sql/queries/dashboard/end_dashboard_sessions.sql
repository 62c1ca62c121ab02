-- End all sessions of the dashboard, in the name of %(actor)s. Run by the dashboard.
SELECT jobherd.end_dashboard_sessions(%(actor)s::text)
