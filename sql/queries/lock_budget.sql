-- Let the children of one supervisor claim one after the other, to the end of the transaction: two that both saw room for a job would
-- both take one. Run by a child right before its claim, in the same transaction; each statement sees what was committed when it began.
-- The key names the schema, for advisory locks are shared by all of a database, and each schema counts its supervisors from 1.
SELECT pg_advisory_xact_lock(hashtextextended('jobherd.budget', %(supervisor)s::bigint))
