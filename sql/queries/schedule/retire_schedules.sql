-- Retire the schedules that no handler declares any more: see jobherd.retire_schedules in
-- schema/41_declarations.sql. Run by maintenance processes, each 30 s.
SELECT jobherd.retire_schedules() AS name
