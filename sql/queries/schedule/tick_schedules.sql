-- Decide instants of schedules: see jobherd.tick in schema/40_ticks.sql. Run by maintenance processes.
SELECT jobherd.tick(%(decisions)s::jsonb, %(by)s::text) AS name
