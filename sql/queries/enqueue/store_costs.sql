-- Store the cost of each of some jobs. Run by producers right after they have enqueued them, in the same
-- transaction: no other session sees the jobs without it. It returns rows for clients that use a pipeline.
SELECT job FROM jobherd.demand_own(%(ids)s::bigint[], %(costs)s::text[]::jsonb[]) AS job
