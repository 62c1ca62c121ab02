-- Find a session of a remote worker, whichever gateway serves it. Run by a gateway for a call of a session that it
-- does not know. No row means that the session has ended, or belongs to another client.
-- Parameters: session, principal (the authenticated client).
-- Columns: child (the owner of its claims), worker (its name).
SELECT c.id AS child, s.host AS worker
  FROM jobherd.supervisors s JOIN jobherd.children c ON c.supervisor = s.id AND c.incarnation = 1
 WHERE s.id = %(session)s::bigint AND s.via IS NOT NULL AND s.principal = %(principal)s::text
