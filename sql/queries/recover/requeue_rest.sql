-- Release the jobs of a claim after the one that runs, which takes longer than expected. Run by the supervisor,
-- which has told the worker on its status board to start none of them. Jobs with a request to cancel stay, for
-- the worker to record, and so do those that run in the same call: %(called)s. A job whose id a ready job has
-- gets another id, as in requeue_child.sql.
WITH held AS MATERIALIZED (
    SELECT jobs FROM jobherd.running WHERE child = %(child)s AND token = %(token)s FOR UPDATE
), later AS (
    SELECT coalesce(array_agg(j.id), '{}') AS ids
      FROM held h CROSS JOIN LATERAL unnest(h.jobs) AS j
           CROSS JOIN LATERAL (SELECT c.priority, c.id FROM unnest(h.jobs) AS c WHERE c.id = %(job)s) AS one
     WHERE (j.priority, j.id) > (one.priority, one.id) AND j.id <> ALL (coalesce(%(called)s::bigint[], '{}'))
       AND NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id)
)
SELECT b.id
  FROM later l CROSS JOIN LATERAL jobherd.requeue(ARRAY[%(child)s::bigint], ARRAY[%(token)s::bigint], only_jobs => l.ids) AS b
