-- Note an action in the transaction that does it; returns the number of the note.
SELECT jobherd.note_audit(%(actor)s::text, %(action)s::text, %(target)s::jsonb, %(reason)s::text) AS id
