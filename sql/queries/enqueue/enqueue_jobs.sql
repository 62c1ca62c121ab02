-- Enqueue many jobs of one kind: due jobs into ready, the others into scheduled. Run by producers, in their own
-- transaction. Returns the ids in the order of the payloads, which is the order of the rows: `asked` is
-- materialized, and read as it was written. A tenant's role may not choose an id (schema/24_tenants.sql), so the
-- column defaults do. A null option means the one that the kind declares. Only jobs with a partition call
-- functions for it. Cost: the payloads are sent as a
-- binary array. As text, quoted and unquoted one by one, they cost three times as much as everything else.
WITH asked AS MATERIALIZED (
    SELECT a.payload::json AS payload
      FROM unnest(%(payloads)b::text[]) WITH ORDINALITY AS a (payload, place)
     ORDER BY a.place
), common AS MATERIALIZED (
    SELECT coalesce(%(run_at)s::timestamptz, now() + make_interval(secs => %(delay)s::double precision), now()) AS run_at,
           coalesce(%(queue)s::text, k.queue, 'default') AS queue,
           coalesce(%(priority)s::smallint, k.priority, 0::smallint) AS priority,
           jobherd.extras_of(tenant => coalesce(%(tenant)s::text, jobherd.default_tenant()), webhook => jobherd.check_webhook(%(webhook)s::text),
                             payload_bytes => %(payload_bytes)b::bytea, parent_id => %(parent_id)s::bigint,
                             traceparent => jobherd.check_traceparent(%(traceparent)s::text)) AS extras,
           %(partition)s::text AS named, k.partition_by AS path, row_security_active('jobherd.ready') AND jobherd.is_tenant() AS confined
      FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = %(kind)s::text
), at_once AS (
    INSERT INTO jobherd.ready (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
    SELECT c.run_at, %(expires_at)s::timestamptz, %(timeout)s::double precision, c.priority, %(max_attempts)s::smallint, c.queue,
           %(kind)s::text, a.payload, CASE WHEN p.name IS NULL THEN c.extras ELSE jobherd.with_partition(c.extras, p.name) END,
           jobherd.lane_of(p.name)
      FROM asked a CROSS JOIN common c
           LEFT JOIN LATERAL (SELECT jobherd.partition_of(c.named, c.path, a.payload, (c.extras).tenant, c.confined) AS name OFFSET 0) AS p
           ON c.confined OR c.named IS NOT NULL OR c.path IS NOT NULL
     WHERE c.run_at <= now()
    RETURNING id
), later AS (
    INSERT INTO jobherd.scheduled (run_at, expires_at, timeout, priority, max_attempts, queue, kind, payload, extras, lane)
    SELECT c.run_at, %(expires_at)s::timestamptz, %(timeout)s::double precision, c.priority, %(max_attempts)s::smallint, c.queue,
           %(kind)s::text, a.payload, CASE WHEN p.name IS NULL THEN c.extras ELSE jobherd.with_partition(c.extras, p.name) END,
           jobherd.lane_of(p.name)
      FROM asked a CROSS JOIN common c
           LEFT JOIN LATERAL (SELECT jobherd.partition_of(c.named, c.path, a.payload, (c.extras).tenant, c.confined) AS name OFFSET 0) AS p
           ON c.confined OR c.named IS NOT NULL OR c.path IS NOT NULL
     WHERE c.run_at > now()
    RETURNING id
)
SELECT id FROM at_once UNION ALL SELECT id FROM later
