-- Run the next slice of a bulk action: act on the jobs %(ids)s. After it, all ids from %(reaches)s on are done.
-- Returns the row as it is then. No row if the action was stopped, or if another process has moved it from
-- %(reached)s: then nothing was done.
--
-- The audit log gets entries for the begin and the end of the action, and none for single jobs. Finished jobs
-- are not canceled again: each canceled job would count twice.
WITH mine AS MATERIALIZED (
    SELECT b.*, set_config('jobherd.noted', 'yes', true) AS quietly
      FROM jobherd.bulks b
     WHERE b.id = %(id)s AND b.reached = %(reached)s AND b.ended_at IS NULL AND b.stopped_by IS NULL
       FOR UPDATE
), answers AS MATERIALIZED (
    SELECT CASE m.action
           WHEN 'retry' THEN jobherd.retry(i.id)
           WHEN 'cancel' THEN coalesce((SELECT 'was ' || h.state FROM jobherd.history h WHERE h.id = i.id LIMIT 1), jobherd.cancel(i.id))
           WHEN 'delete' THEN jobherd.delete(i.id)
           WHEN 'reprioritize' THEN jobherd.reprioritize(i.id, m.value::integer)
           WHEN 'reschedule' THEN jobherd.reschedule(i.id, m.value::timestamptz)
           END AS answer, m.action
      FROM mine m CROSS JOIN LATERAL (SELECT id FROM unnest(%(ids)s::bigint[]) AS id ORDER BY id DESC) AS i
), judged AS (
    SELECT coalesce(a.answer, 'gone') AS answer, count(*) AS jobs,
           coalesce(a.answer = ANY (CASE a.action
               WHEN 'retry' THEN '{ready}' WHEN 'cancel' THEN '{cancelled,cancelling}' WHEN 'delete' THEN '{deleted}'
               ELSE '{ready,scheduled,retrying,blocked}' END::text[]), false) AS done
      FROM answers a
     GROUP BY 1, 3
)
UPDATE jobherd.bulks b
   SET reached = %(reaches)s, moved_at = clock_timestamp(),
       done = b.done + coalesce((SELECT sum(j.jobs) FROM judged j WHERE j.done), 0),
       refused = b.refused || coalesce((SELECT jsonb_object_agg(j.answer, j.jobs + coalesce((b.refused ->> j.answer)::bigint, 0))
                                          FROM judged j WHERE NOT j.done), '{}')
  FROM mine m
 WHERE b.id = m.id
RETURNING b.*
