-- Delete the full buckets of rate limits that are gone. Run by maintenance processes. A row that a claim holds is left
-- for the next time.
DELETE FROM jobherd.buckets
 WHERE (scope, name) IN (SELECT b.scope, b.name
                           FROM jobherd.buckets b
                          WHERE b.used_until < clock_timestamp()
                            AND NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = b.scope AND g.name = b.name AND g.rate IS NOT NULL)
                            FOR UPDATE OF b SKIP LOCKED)
