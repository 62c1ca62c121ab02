-- Say of the records that run on this host that they do. Run by a resetter, who sees it on the boards: the worker is in user code.
-- Nobody is waited for: a record that somebody is just changing is said to run at the next beat.
WITH mine AS MATERIALIZED (
    SELECT t.{id} AS id
      FROM {table} AS t
      JOIN unnest(%(records)s::bigint[], %(tokens)s::bigint[]) AS r (record, token)
        ON t.{id} = r.record AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = r.token
     WHERE t.{state} = 'processing'
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE {table} AS t SET {last_heartbeat_at} = clock_timestamp() FROM mine WHERE t.{id} = mine.id
