-- Answer a fleet command, once: an earlier answer stays. Run by the supervisor.
UPDATE jobherd.fleet_commands
   SET done_at = clock_timestamp(), answer = %(answer)s::jsonb, error = %(error)s
 WHERE id = %(order)s AND done_at IS NULL
