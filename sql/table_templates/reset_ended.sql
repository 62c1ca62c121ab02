-- Reset one record whose process is known to be dead, if the claim is still valid. If that happened too often,
-- the record fails with the cause of the last death. Run by a resetter.
UPDATE {table} AS t
   SET {state} = CASE WHEN t.{cancel} THEN 'canceled' WHEN coalesce(t.{num_resets}, 0) >= %(most)s THEN 'failed' ELSE 'queued' END,
       {failure_message} = CASE WHEN t.{cancel} THEN %(cancelled)s WHEN coalesce(t.{num_resets}, 0) >= %(most)s THEN %(message)s ELSE %(post_mortem)s END,
       {finished_at} = CASE WHEN t.{cancel} OR coalesce(t.{num_resets}, 0) >= %(most)s THEN clock_timestamp() END,
       {execution_logs} = coalesce(%(logs)s::json[], t.{execution_logs}),
       {num_resets} = coalesce(t.{num_resets}, 0) + CASE WHEN t.{cancel} OR coalesce(t.{num_resets}, 0) >= %(most)s THEN 0 ELSE 1 END
 WHERE t.{id} = %(record)s AND t.{state} = 'processing' AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = %(token)s
RETURNING t.{id}, t.{state}
