-- Claim the next record of an application's table (step one of two), committed at once, so that every reader sees
-- it in work. Run by a worker. MATERIALIZED: otherwise a plan may run the LIMIT with its locks again and claim
-- more than one. The claim is named by started_at: it grows with each claim of a record and is never reset.
WITH next AS MATERIALIZED (
    SELECT {me}.{id} AS id
      FROM {table} AS {me}
     WHERE {me}.{state} IN ('queued', 'errored')
       AND ({me}.{process_after} IS NULL OR {me}.{process_after} <= now())
       AND {me}.{cancel} IS NOT TRUE
       AND NOT EXISTS (SELECT FROM {gates} AS g
                        WHERE g.paused_at IS NOT NULL AND (g.scope = 'all' OR (g.scope = 'kind' AND g.name = %(jobherd_kind)s)))
       AND ({condition})
     ORDER BY {order_by}
     LIMIT 1
       FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS t
   SET {state} = 'processing', {started_at} = greatest(clock_timestamp(), t.{started_at} + interval '1 microsecond'),
       {finished_at} = NULL, {last_heartbeat_at} = clock_timestamp(), {failure_message} = NULL, {execution_logs} = NULL,
       {worker_hostname} = %(jobherd_host)s
  FROM next
 WHERE t.{id} = next.id
RETURNING t.{id}, (extract(epoch FROM t.{started_at}) * 1000000)::bigint AS token, coalesce(t.{num_failures}, 0), coalesce(t.{num_resets}, 0),
          coalesce(extract(epoch FROM t.{queued_at}), 0)::double precision,
          coalesce(extract(epoch FROM coalesce(t.{process_after}, t.{queued_at})), 0)::double precision,
          extract(epoch FROM clock_timestamp())::double precision
