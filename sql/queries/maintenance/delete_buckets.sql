-- Delete the full buckets of rate limits that are gone, and those of partitions whose jobs wait for no token: a bucket
-- that is full holds as much as none. Run by maintenance processes. A row that a claim holds is left for the next time.
DELETE FROM jobherd.buckets
 WHERE (scope, name) IN (SELECT b.scope, b.name
                           FROM jobherd.buckets b
                          WHERE b.used_until < clock_timestamp()
                            AND CASE b.scope
                                WHEN 'lane' THEN b.waiting_in IS NULL
                                                 OR NOT EXISTS (SELECT FROM jobherd.gates g
                                                                 WHERE g.scope = 'queue' AND g.name = b.waiting_in AND g.each_rate IS NOT NULL)
                                ELSE NOT EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = b.scope AND g.name = b.name AND g.rate IS NOT NULL) END
                          LIMIT 10000
                            FOR UPDATE OF b SKIP LOCKED)
