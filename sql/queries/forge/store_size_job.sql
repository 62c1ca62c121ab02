-- Store which job measures the repository after a push. Run by push:process, in the transaction that created it.
UPDATE jobherd.forge_push_events SET size_job = %(job)s WHERE id = %(id)s
