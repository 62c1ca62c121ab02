-- Enqueue a job for a user of the dashboard, and write the audit entry in the same transaction. Returns the job's id.
WITH made AS MATERIALIZED (
    SELECT jobherd.enqueue(%(kind)s::text, %(payload)s::jsonb, %(options)s::jsonb) AS id
)
SELECT m.id, jobherd.note_audit(%(actor)s::text, 'enqueue', jsonb_build_object('job', m.id, 'kind', %(kind)s::text), %(reason)s::text) AS entry
  FROM made m
