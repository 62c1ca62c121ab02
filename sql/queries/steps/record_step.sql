-- Record a step of a running job. Returns a row, or none if the claim is lost: then nothing is written.
--
-- Fencing: the row of the claim is locked until the record is committed, by the weakest lock. A settlement waits for it,
-- and then finds it again. Sent twice if an answer was lost, so a record of this claim is not an error.
INSERT INTO jobherd.steps AS s (job, name, result, token, attempt, version)
SELECT %(job)s::bigint, %(name)s::text, %(result)s::text::json, held.token, %(attempt)s::integer, %(version)s::integer
  FROM (SELECT token FROM jobherd.running
         WHERE child = %(child)s AND token = %(token)s AND EXISTS (SELECT FROM unnest(jobs) AS j WHERE j.id = %(job)s)
           FOR KEY SHARE) AS held
ON CONFLICT (job, name) DO UPDATE SET at = s.at WHERE s.token = excluded.token
RETURNING name
