-- Enqueue the children of a running job and record the step, in one transaction. Returns the record, null if the claim is lost.
SELECT jobherd.spawn_children(%(child)s, %(token)s, %(job)s, %(name)s::text, %(title)s::text, %(nodes)s::jsonb, %(options)s::jsonb,
                              %(jobs)s::bigint, %(leaves)s::boolean, %(attempt)s::integer, %(version)s::integer)::text AS result
