-- Record a step of a running job. Returns a row, or none if the claim is lost: then nothing is written.
SELECT %(name)s::text AS name
 WHERE jobherd.record_step(%(child)s::bigint, %(token)s::bigint, %(job)s::bigint, %(name)s::text, %(result)s::text,
                           %(attempt)s::integer, %(version)s::integer)
