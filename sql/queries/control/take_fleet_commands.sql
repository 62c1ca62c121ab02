-- Take up to %(most)s fleet commands for a supervisor, the oldest first. Commands that have waited for more than
-- 30 s are rejected and not returned. A taken command is never taken again, so it is executed at most once. Run
-- by the supervisor when it is notified, and when a renewal of the lease has found some.
WITH mine AS MATERIALIZED (
    SELECT o.id, o.asked_at < clock_timestamp() - interval '30 s' AS late
      FROM jobherd.fleet_commands o
     WHERE o.supervisor = %(supervisor)s AND o.taken_at IS NULL AND o.done_at IS NULL
     ORDER BY o.id
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
), refused AS (
    UPDATE jobherd.fleet_commands o SET done_at = clock_timestamp(), error = 'refused: the supervisor did not take it within 30 s'
      FROM mine m WHERE m.late AND o.id = m.id
    RETURNING o.id
), taken AS (
    UPDATE jobherd.fleet_commands o SET taken_at = clock_timestamp()
      FROM mine m WHERE NOT m.late AND o.id = m.id
    RETURNING o.id, o.name, o.arguments, o.asked_by
)
SELECT id, name, arguments, asked_by FROM taken ORDER BY id
