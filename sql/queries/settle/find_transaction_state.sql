-- Return the state of a transaction (committed, aborted, in progress, or null if nothing is known), and whether
-- its claim still exists. After a crash of the server, a transaction number that was never flushed is assigned
-- again, so a number alone proves nothing. A committed completion has removed the claim.
SELECT pg_xact_status(%(xact)s::text::xid8) AS fate,
       EXISTS (SELECT FROM jobherd.running WHERE child = %(child)s AND token = %(token)s) AS held
