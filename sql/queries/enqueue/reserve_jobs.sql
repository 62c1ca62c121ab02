-- Reserve the ids of jobs that copy_ready or copy_scheduled will insert, and resolve their options. Run by
-- producers right before it. No row: this role may not choose ids, row security rejects a COPY, or the kind divides
-- its jobs by partition, and enqueue_jobs does the work instead. The timestamp is written in the format of JSON: in the session's own style
-- it may contain the short name of a time zone that PostgreSQL reads as another one.
SELECT array(SELECT nextval('jobherd.job_ids') FROM generate_series(1, %(count)s::integer)) AS ids,
       c.run_at <= now() AS due,
       to_json(c.run_at) #>> '{}' AS run_at,
       c.queue, c.priority
  FROM (SELECT coalesce(%(run_at)s::timestamptz, now() + make_interval(secs => %(delay)s::double precision), now()) AS run_at,
               coalesce(%(queue)s::text, k.queue, 'default') AS queue,
               coalesce(%(priority)s::smallint, k.priority, 0::smallint) AS priority, k.partition_by
          FROM (SELECT) AS nothing LEFT JOIN jobherd.kinds k ON k.name = %(kind)s::text) AS c
 WHERE has_column_privilege('jobherd.ready', 'id', 'INSERT') AND NOT row_security_active('jobherd.ready') AND c.partition_by IS NULL
