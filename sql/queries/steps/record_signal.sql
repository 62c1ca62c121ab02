-- Record which signal a step of a running job has taken, or that its timeout has passed, and end the wait. Otherwise as
-- jobherd.record_step.
WITH held AS MATERIALIZED (
    SELECT token FROM jobherd.running
     WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = %(job)s)
       FOR KEY SHARE
), ended AS (
    DELETE FROM jobherd.waits WHERE job = %(job)s AND EXISTS (SELECT FROM held)
)
INSERT INTO jobherd.steps AS s (job, name, result, token, attempt, version, signal)
SELECT %(job)s::bigint, %(name)s::text, %(result)s::text::json, held.token, %(attempt)s::integer, %(version)s::integer, %(signal)s::bigint
  FROM held
ON CONFLICT (job, name) DO UPDATE SET at = s.at WHERE s.token = excluded.token
RETURNING name
