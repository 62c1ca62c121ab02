-- Copy the progress that running jobs report from the status boards. Run by a maintenance process once a second,
-- only for what has changed.
INSERT INTO jobherd.progress (job, token, progress)
SELECT * FROM unnest(%(jobs)s::bigint[], %(tokens)s::bigint[], %(progresses)s::jsonb[])
ON CONFLICT (job) DO UPDATE SET token = excluded.token, progress = excluded.progress, at = clock_timestamp()
