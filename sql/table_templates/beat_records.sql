-- Mark the records that run on this host as alive. Run by a resetter, which reads them from the status boards:
-- the worker is in user code. It waits for no lock: a record that another session is changing is marked at the
-- next heartbeat.
WITH mine AS MATERIALIZED (
    SELECT t.{id} AS id
      FROM {table} AS t
      JOIN unnest(%(records)s::bigint[], %(tokens)s::bigint[]) AS r (record, token)
        ON t.{id} = r.record AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = r.token
     WHERE t.{state} = 'processing'
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE {table} AS t SET {last_heartbeat_at} = clock_timestamp() FROM mine WHERE t.{id} = mine.id
