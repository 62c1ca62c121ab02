-- Delete up to %(most)s logs whose day is past. Run by keepers, again and again while there are as many. By index: it costs what it deletes.
-- A log that another session is deleting, together with its job, is left for the next time: the keeper would wait for it, and due jobs for the keeper.
DELETE FROM jobherd.logs
 WHERE (job, token) IN (SELECT job, token FROM jobherd.logs WHERE drop_on < (now() AT TIME ZONE 'UTC')::date ORDER BY drop_on LIMIT %(most)s
                          FOR UPDATE SKIP LOCKED)
