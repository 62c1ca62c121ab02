-- Delete up to %(most)s logs whose day is past. Run by keepers, again and again while there are as many. By index: it costs what it deletes.
DELETE FROM jobherd.logs
 WHERE (job, token) IN (SELECT job, token FROM jobherd.logs WHERE drop_on < (now() AT TIME ZONE 'UTC')::date ORDER BY drop_on LIMIT %(most)s)
