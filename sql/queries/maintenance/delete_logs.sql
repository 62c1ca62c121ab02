-- Delete up to %(most)s logs whose day is past. Run by maintenance processes, repeatedly while that many are
-- found. By index: it costs as much as it deletes. A log that another session is deleting, together with its
-- job, is left for the next time: the maintenance process would wait for it, and due jobs for the maintenance
-- process.
DELETE FROM jobherd.logs
 WHERE (job, token) IN (SELECT job, token FROM jobherd.logs WHERE drop_on < (now() AT TIME ZONE 'UTC')::date ORDER BY drop_on LIMIT %(most)s
                          FOR UPDATE SKIP LOCKED)
