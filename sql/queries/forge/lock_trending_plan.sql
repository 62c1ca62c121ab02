-- Hold the plan of the next trending:compute until the end of the transaction. Run before the plan is looked at: the next statement,
-- and only the next, sees what whoever held it before has planned.
SELECT one FROM jobherd.forge_trending_plan FOR UPDATE
