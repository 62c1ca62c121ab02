-- Copy what running jobs say of themselves from the boards. Run by a keeper once a second, only for what has changed.
INSERT INTO jobherd.progress (job, token, progress)
SELECT * FROM unnest(%(jobs)s::bigint[], %(tokens)s::bigint[], %(progresses)s::jsonb[])
ON CONFLICT (job) DO UPDATE SET token = excluded.token, progress = excluded.progress, at = clock_timestamp()
