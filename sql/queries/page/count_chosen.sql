-- Count these jobs by state, before an action on them.
SELECT j.id, j.state FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
