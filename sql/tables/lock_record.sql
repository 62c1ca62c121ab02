-- Step two, the first statement of the transaction in which the record is worked: lock it, if the claim still stands. Run by a worker.
-- For key share: nobody can take the record while this transaction lives, yet its owner can still set the flag that cancels it.
SELECT t.{id}
  FROM {table} AS t
 WHERE t.{id} = %(record)s AND t.{state} = 'processing' AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = %(token)s
   FOR KEY SHARE
