-- Close the fleet commands that will get no answer, and delete answered ones: reports after a minute, the others
-- after a day. Run by maintenance processes, up to %(most)s at a time. If a command was taken and not answered
-- within 10 min, its supervisor has died with it.
WITH closed AS (
    UPDATE jobherd.fleet_commands
       SET done_at = clock_timestamp(),
           error = CASE WHEN taken_at IS NULL THEN 'refused: the supervisor did not take it within 30 s'
                        ELSE 'the supervisor took it and did not answer' END
     WHERE id IN (SELECT id FROM jobherd.fleet_commands
                   WHERE done_at IS NULL
                     AND coalesce(taken_at + interval '10 minutes', asked_at + interval '30 s') < clock_timestamp()
                   ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED)
)
DELETE FROM jobherd.fleet_commands
 WHERE id IN (SELECT id FROM jobherd.fleet_commands
               WHERE done_at < clock_timestamp() - CASE name WHEN 'report' THEN interval '1 minute' ELSE interval '1 day' END
               ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED)
