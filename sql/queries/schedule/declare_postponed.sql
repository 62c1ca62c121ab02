-- Store the schedules that workers could not store when they started: see jobherd.declare_postponed in
-- schema/41_declarations.sql. Run by maintenance processes, each 30 s.
SELECT jobherd.declare_postponed() AS name
