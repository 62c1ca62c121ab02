-- Some jobs in full, live or past, newest first, with the database's time. Run by people.
SELECT clock_timestamp() AS asked_at, j.* FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
