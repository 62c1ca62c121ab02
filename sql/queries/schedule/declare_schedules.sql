-- Store which schedules the handlers of this supervisor declare: see jobherd.declare_schedules in
-- schema/41_declarations.sql. Run by each worker once it has loaded them.
SELECT jobherd.declare_schedules(%(supervisor)s::bigint, %(schedules)s::jsonb) AS name
