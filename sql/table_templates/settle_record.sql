-- Write the outcome of a record, if the claim is still valid. Run by the worker in the transaction that locked
-- it, or for a dead worker.
UPDATE {table} AS t
   SET {state} = %(state)s,
       {failure_message} = %(message)s,
       {finished_at} = CASE WHEN %(state)s <> 'queued' THEN clock_timestamp() END,
       {process_after} = CASE WHEN %(delay)s::double precision IS NULL THEN t.{process_after}
                              ELSE clock_timestamp() + make_interval(secs => %(delay)s::double precision) END,
       {num_failures} = coalesce(t.{num_failures}, 0) + %(failures)s,
       {execution_logs} = coalesce(%(logs)s::json[], t.{execution_logs})
 WHERE t.{id} = %(record)s AND t.{state} = 'processing' AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = %(token)s
RETURNING t.{id}
