-- Stop what is being done to many jobs, after the slice it is at. None if it has ended.
UPDATE jobherd.bulks SET stopped_by = coalesce(stopped_by, %(actor)s) WHERE id = %(id)s AND ended_at IS NULL RETURNING id
