-- Enqueue jobs of one kind, or change the jobs that wait under their keys: replace, collect, debounce, throttle. Run by
-- producers, in their own transaction. Parameters: as of enqueue_unique.sql. The rule is that of
-- jobherd.enqueue_keyed. Columns: id, new, in the order of the payloads.
SELECT u.id, u.new
  FROM (SELECT coalesce(%(run_at)s::timestamptz, now() + make_interval(secs => %(delay)s::double precision), now()) AS run_at,
               coalesce(%(queue)s::text, k.queue, 'default') AS queue,
               coalesce(%(priority)s::smallint, k.priority, 0::smallint) AS priority
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = %(kind)s::text) AS c
 CROSS JOIN LATERAL jobherd.enqueue_keyed(
           kind => %(kind)s::text, payloads => %(payloads)b::text[], rule => %(rule)s::jsonb,
           names => %(names)s::text[], paths => %(paths)s::text[], keys => %(keys)s::text[],
           run_at => c.run_at, expires_at => %(expires_at)s::timestamptz, timeout => %(timeout)s::double precision,
           priority => c.priority, max_attempts => %(max_attempts)s::smallint, queue => c.queue,
           tenant => coalesce(%(tenant)s::text, jobherd.default_tenant()), webhook => %(webhook)s::text,
           payload_bytes => %(payload_bytes)b::bytea, parent_id => %(parent_id)s::bigint,
           traceparent => %(traceparent)s::text) AS u
 ORDER BY u.place
