-- Mark a bulk action as ended and write its numbers to the audit log. No row if it had ended before.
WITH ended AS (
    UPDATE jobherd.bulks SET ended_at = clock_timestamp(), error = %(error)s WHERE id = %(id)s AND ended_at IS NULL RETURNING *
)
SELECT e.id, jobherd.note_audit(e.actor, 'bulk ' || e.action || CASE WHEN e.stopped_by IS NOT NULL THEN ' stopped' WHEN e.error IS NOT NULL THEN ' broken' ELSE ' done' END,
           jsonb_strip_nulls(jsonb_build_object('bulk', e.id, 'done', e.done, 'refused', nullif(e.refused, '{}'), 'stopped_by', e.stopped_by, 'error', e.error)),
           e.reason) AS noted
  FROM ended e
