-- Delete the lock rows that made the workers of a supervisor claim one after another, once the supervisor is
-- gone. Run by maintenance processes. A row that a claim still holds is left for the next time.
DELETE FROM jobherd.claim_locks
 WHERE (scope, name) IN (SELECT l.scope, l.name
                           FROM jobherd.claim_locks l
                          WHERE l.scope IN ('budget', 'supervisor')
                            AND NOT EXISTS (SELECT FROM jobherd.supervisors s WHERE s.id::text = split_part(l.name, ' ', 1))
                            FOR UPDATE OF l SKIP LOCKED)
