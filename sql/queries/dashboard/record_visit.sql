-- Write a login, a logout, a wrong token or a rate-limited address to the audit log. Run by the dashboard.
SELECT jobherd.note_visit(%(actor)s::text, %(action)s::text, %(target)s::jsonb) AS id
