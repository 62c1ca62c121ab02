-- In which state these jobs are, before something is done to them.
SELECT j.id, j.state FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
