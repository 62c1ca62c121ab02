-- Store which jobs work on push events. Run by hooks, in the transaction that created both.
UPDATE jobherd.forge_push_events e SET job = n.job
  FROM unnest(%(ids)s::bigint[], %(jobs)s::bigint[]) AS n (id, job)
 WHERE e.id = n.id
