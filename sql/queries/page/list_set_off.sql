-- The first %(most)s jobs that a job has set off, in the order in which it did, wherever they are. Each table has an index of those that
-- somebody set off; what runs is as small as the fleet.
SELECT id, kind, queue, state, created_at, finished_at FROM jobherd.jobs WHERE set_off_by = %(id)s::bigint ORDER BY id LIMIT %(most)s::integer
