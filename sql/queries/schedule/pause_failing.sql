-- Pause the schedules with the option pause_after whose last runs failed: of these names, or all if null. Run by maintenance
-- processes, each 30 s, and before they decide an instant of such a schedule.
SELECT schedule, reason FROM jobherd.pause_failing(%(names)s::text[])
