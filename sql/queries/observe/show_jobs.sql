-- Show jobs in full, live or finished, newest first, with the database's time. Run on users' request.
SELECT clock_timestamp() AS asked_at, j.* FROM jobherd.jobs j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id DESC
