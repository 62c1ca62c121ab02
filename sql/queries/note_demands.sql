-- Say what each of some jobs costs. Run by producers right after they have enqueued them, in the same transaction: nobody sees the jobs
-- without it. It returns rows for those who speak in a pipeline.
INSERT INTO jobherd.demands (job, cost)
SELECT * FROM unnest(%(ids)s::bigint[], %(costs)s::text[]::jsonb[])
RETURNING job
