-- Store the next trending:compute. Run under the lock of the plan.
UPDATE jobherd.forge_trending_plan SET job = %(job)s
