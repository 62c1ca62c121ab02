-- Store a bulk action and write its actor to the audit log. Bulk actions that ended over 30 days ago are
-- deleted.
WITH old AS (
    DELETE FROM jobherd.bulks WHERE ended_at < clock_timestamp() - interval '30 days'
), added AS (
    INSERT INTO jobherd.bulks (action, value, wanted, actor, reason, expected, at_least, reached)
    VALUES (%(action)s, %(value)s, %(wanted)s::jsonb, %(actor)s, %(reason)s, %(expected)s, %(at_least)s, %(reached)s)
    RETURNING *
)
SELECT a.id, jobherd.note_audit(a.actor, 'bulk ' || a.action,
           jsonb_strip_nulls(jsonb_build_object('bulk', a.id, 'jobs', a.wanted, 'value', a.value, 'expected', a.expected, 'at_least', nullif(a.at_least, false))),
           a.reason) AS noted
  FROM added a
