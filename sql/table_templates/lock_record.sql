-- Lock a claimed record if the claim is still valid (step two): the first statement of the transaction that
-- processes it. Run by a worker. FOR KEY SHARE: no other process can claim the record while this transaction is
-- open, yet its owner can still set the flag that cancels it.
SELECT t.{id}
  FROM {table} AS t
 WHERE t.{id} = %(record)s AND t.{state} = 'processing' AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = %(token)s
   FOR KEY SHARE
