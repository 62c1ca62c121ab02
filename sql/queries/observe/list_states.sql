-- List the states of some jobs, with their last error; a job that does not exist has no row. Run repeatedly by
-- clients that wait for the jobs to finish.
SELECT id, state, error_code, error FROM jobherd.jobs WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id
