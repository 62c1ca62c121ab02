-- Record for which signal, or for the end of which flow, a job waits, in the transaction that suspends it, and tell maintenance processes. The row of its claim
-- is locked already.
WITH told AS MATERIALIZED (
    SELECT jobherd.notify('jobherd_jobs', '@due')
), own AS MATERIALIZED (
    SELECT (j.extras).tenant FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE r.child = %(child)s AND r.token = %(token)s AND j.id = %(job)s
), put AS (
    INSERT INTO jobherd.waits (job, name, topic, tenant, until, flow)
    SELECT %(job)s, %(name)s, %(topic)s, tenant, clock_timestamp() + make_interval(secs => %(seconds)s::double precision), %(flow)s::bigint
      FROM own
    ON CONFLICT (job) DO UPDATE SET name = excluded.name, topic = excluded.topic, until = excluded.until, flow = excluded.flow, looked = false
    RETURNING job
)
SELECT put.job FROM put, told
