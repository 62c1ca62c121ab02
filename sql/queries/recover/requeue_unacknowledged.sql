-- Release what this worker has claimed without receiving the answer: the session broke between the commit and
-- the answer. Run by a worker that has a new session, once its old one is certainly dead. %(known_tokens)s are the
-- tokens that it holds. Nothing of the other claims has started, so the attempt is not counted.
WITH held AS (
    SELECT array_agg(r.child) AS children, array_agg(r.token) AS tokens
      FROM jobherd.running r
     WHERE r.child = %(child)s AND r.token <> ALL (%(known_tokens)s::bigint[])
)
SELECT b.id FROM held h CROSS JOIN LATERAL jobherd.requeue(h.children, h.tokens) AS b
