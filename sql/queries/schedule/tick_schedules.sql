-- Decide instants of schedules: see jobherd.tick in migrations/0009_schedules.sql. Run by maintenance processes.
SELECT jobherd.tick(%(decisions)s::jsonb, %(by)s::text) AS name
