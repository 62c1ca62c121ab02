-- Reset records that are in work without a process: no transaction has the row locked, and there was no sign of
-- life for the grace period. Run by a resetter. A record in work is locked, so SKIP LOCKED is the whole test. A
-- record that was reset too often fails.
WITH stalled AS MATERIALIZED (
    SELECT t.{id} AS id
      FROM {table} AS t
     WHERE t.{state} = 'processing'
       AND coalesce(greatest(t.{started_at}, t.{last_heartbeat_at}) < clock_timestamp() - make_interval(secs => %(age)s::double precision), true)
     LIMIT 500
       FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS t
   SET {state} = CASE WHEN t.{cancel} THEN 'canceled' WHEN coalesce(t.{num_resets}, 0) >= %(most)s THEN 'failed' ELSE 'queued' END,
       {failure_message} = CASE WHEN t.{cancel} THEN %(cancelled)s WHEN coalesce(t.{num_resets}, 0) >= %(most)s THEN %(message)s END,
       {finished_at} = CASE WHEN t.{cancel} OR coalesce(t.{num_resets}, 0) >= %(most)s THEN clock_timestamp() END,
       {num_resets} = coalesce(t.{num_resets}, 0) + CASE WHEN t.{cancel} OR coalesce(t.{num_resets}, 0) >= %(most)s THEN 0 ELSE 1 END
  FROM stalled
 WHERE t.{id} = stalled.id
RETURNING t.{id}, t.{state}
