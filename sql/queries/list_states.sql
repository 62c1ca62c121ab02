-- The states of some jobs, with what went wrong last; a job that does not exist has no row. Run again and again by whoever waits for their end.
SELECT id, state, error_code, error FROM jobherd.jobs WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id
