-- Lock the plan of the next trending:compute until the end of the transaction. Run before the plan is read: only
-- the next statement sees what the previous holder of the lock has planned.
SELECT one FROM jobherd.forge_trending_plan FOR UPDATE
