-- List the first %(most)s child jobs of a job, in the order in which it enqueued them, in any state. Each table
-- has an index of the child jobs; `running` is as small as the fleet.
SELECT id, kind, queue, state, created_at, finished_at FROM jobherd.jobs WHERE parent_id = %(id)s::bigint ORDER BY id LIMIT %(most)s::integer
