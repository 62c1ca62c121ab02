-- The id of the transaction that is open, null if nothing was written in it. Run before a job is completed in its transaction: another id
-- than at the beginning says that the handler has committed or rolled back by itself.
SELECT pg_current_xact_id_if_assigned()::text AS xact
