-- Let the children of one supervisor claim one after the other, to the end of the transaction: two that both saw room for a job would
-- both take one. Run by a child right before its claim, in the same transaction; each statement sees what was committed when it began.
SELECT had FROM jobherd.lock_cap(0, %(supervisor)s::bigint::text, -1)
