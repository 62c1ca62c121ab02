-- Store the next instants of new and edited schedules: see jobherd.plan_schedules in schema/40_ticks.sql.
-- Run by maintenance processes.
SELECT jobherd.plan_schedules(%(plans)s::jsonb, %(planned_with)s::text, %(by)s::text) AS name
