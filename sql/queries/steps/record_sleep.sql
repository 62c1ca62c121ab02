-- Record until when a job sleeps, in the transaction that suspends it. The row of its claim is locked already.
INSERT INTO jobherd.steps (job, name, result, token, attempt, version)
SELECT %(job)s::bigint, %(name)s::text, json_build_object('until', clock_timestamp() + make_interval(secs => %(seconds)s::double precision)),
       %(token)s::bigint, %(attempt)s::integer, %(version)s::integer
RETURNING name
