-- The states of some jobs; a job that does not exist has no row. Run again and again by whoever waits for their end.
SELECT id, state FROM jobherd.jobs WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id
