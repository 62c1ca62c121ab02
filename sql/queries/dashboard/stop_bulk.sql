-- Stop a bulk action after its current slice. No row if it has ended.
UPDATE jobherd.bulks SET stopped_by = coalesce(stopped_by, %(actor)s) WHERE id = %(id)s AND ended_at IS NULL RETURNING id
