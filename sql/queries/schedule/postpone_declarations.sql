-- Leave the schedules that the handlers of this supervisor declare to a maintenance process, because an open transaction
-- has locked one of them; without any, withdraw what an earlier worker has left. Run by each worker whose handlers declare
-- schedules, before it stores them, and again if one is locked.
UPDATE jobherd.declarations d
   SET pending = (SELECT s.value FROM jsonb_array_elements(%(schedules)s::jsonb) AS s WHERE s.value ->> 'name' = d.schedule)
 WHERE d.supervisor = %(supervisor)s::bigint AND (d.pending IS NOT NULL OR %(schedules)s::jsonb <> '[]')
