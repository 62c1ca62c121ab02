-- Send a signal to a job, or to a topic if %(topic)s is not null, and note it in the audit log. Returns its id, or null if the job
-- does not exist. Run on users' request.
WITH sent AS MATERIALIZED (
    SELECT CASE WHEN %(topic)s::text IS NULL THEN jobherd.signal_job(%(job)s::bigint, %(name)s::text, %(payload)s::jsonb)
                ELSE jobherd.signal(%(topic)s::text, %(payload)s::jsonb) END AS id
)
SELECT sent.id, CASE WHEN sent.id IS NOT NULL THEN jobherd.note_audit(%(actor)s::text, 'signal', %(target)s::jsonb, %(reason)s::text) END AS noted
  FROM sent
