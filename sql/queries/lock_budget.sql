-- Let the children of one supervisor claim one after the other, to the end of the transaction: two that both saw room for a job would
-- both take one. Run by a child right before its claim, in the same transaction; each statement sees what was committed when it began.
SELECT pg_advisory_xact_lock(1785687662, mod(%(supervisor)s::bigint, 2147483648)::integer)
