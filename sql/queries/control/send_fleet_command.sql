-- Send a fleet command to a supervisor. Returns its id. Run on users' request, and by the dashboard.
SELECT jobherd.send_fleet_command(%(supervisor)s::bigint, %(name)s::text, %(arguments)s::jsonb, %(actor)s::text, %(reason)s::text) AS id
