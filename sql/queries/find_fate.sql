-- What became of a transaction (committed, aborted, in progress, or null where nothing is known), and whether its claim is still there.
-- After a crash of the server a number that was never flushed is handed out again, so that a number alone proves nothing; a completion
-- that was committed has removed the claim.
SELECT pg_xact_status(%(xact)s::text::xid8) AS fate,
       EXISTS (SELECT FROM jobherd.running WHERE child = %(child)s AND token = %(token)s) AS held
