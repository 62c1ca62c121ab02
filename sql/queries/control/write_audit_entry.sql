-- Write an audit entry in the transaction of its action. Returns its number.
SELECT jobherd.note_audit(%(actor)s::text, %(action)s::text, %(target)s::jsonb, %(reason)s::text) AS id
