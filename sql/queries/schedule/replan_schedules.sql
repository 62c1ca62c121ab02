-- Plan again what was planned with another version of the time zone data. Run by a maintenance process when it
-- starts. What is already due keeps its instant.
UPDATE jobherd.schedules s
   SET plan_from = greatest(s.last_at, clock_timestamp()), revision = s.revision + 1
  FROM (SELECT o.name FROM jobherd.schedules o
         WHERE o.cron IS NOT NULL AND o.planned_with <> %(planned_with)s::text AND o.next_at > clock_timestamp()
         ORDER BY o.name FOR UPDATE SKIP LOCKED) AS old
 WHERE s.name = old.name
