-- Say what each of some jobs costs. Run by producers right after they have enqueued them, in the same transaction: no other session sees the
-- jobs without it. It returns rows for those who speak in a pipeline.
SELECT job FROM jobherd.demand_own(%(ids)s::bigint[], %(costs)s::text[]::jsonb[]) AS job
