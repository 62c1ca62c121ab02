-- Make the workers of one supervisor claim one after the other, until the end of the transaction: two that both
-- saw room in the budget for a job would both claim one. Run by a worker right before its claim, in the same
-- transaction; each statement sees what was committed when it began.
SELECT had FROM jobherd.lock_limit(0, %(supervisor)s::bigint::text, -1)
