-- Return the id of the open transaction, null if nothing was written in it. Run before a job is completed in its
-- transaction: another id than at the beginning means that the handler has committed or rolled back on its own.
-- The completion is written next, and PostgreSQL must not reject it because of the policies of its tables,
-- whatever the role or the handler has set.
SELECT pg_current_xact_id_if_assigned()::text AS xact, set_config('row_security', 'on', true)
