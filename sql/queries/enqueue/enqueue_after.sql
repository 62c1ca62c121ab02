-- Enqueue jobs of one kind that wait until other jobs have ended. Run by producers, in their own transaction. A role
-- that must not write `blocked` calls it too, so jobherd.enqueue_after does the work. A null option means the one that
-- the kind declares. Parameters: as of enqueue_jobs.sql, and after (ids), when. Returns the ids in the order of the payloads.
SELECT u.id
  FROM (SELECT coalesce(%(run_at)s::timestamptz, now() + make_interval(secs => %(delay)s::double precision), now()) AS run_at,
               coalesce(%(queue)s::text, k.queue, 'default') AS queue,
               coalesce(%(priority)s::smallint, k.priority, 0::smallint) AS priority
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = %(kind)s::text) AS c
 CROSS JOIN LATERAL jobherd.enqueue_after(
           kind => %(kind)s::text, payloads => %(payloads)b::text[], upstream => %(after)s::bigint[], wanted => %(when)s::text,
           partition => %(partition)s::text, run_at => c.run_at, expires_at => %(expires_at)s::timestamptz,
           timeout => %(timeout)s::double precision, priority => c.priority, max_attempts => %(max_attempts)s::smallint,
           queue => c.queue, tenant => coalesce(%(tenant)s::text, jobherd.default_tenant()), webhook => %(webhook)s::text,
           payload_bytes => %(payload_bytes)b::bytea, parent_id => %(parent_id)s::bigint,
           traceparent => %(traceparent)s::text) AS u
 ORDER BY u.place
