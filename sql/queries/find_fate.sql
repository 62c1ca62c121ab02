-- What became of a transaction: committed, aborted, or in progress. The one answer to a commit whose answer was lost.
SELECT pg_xact_status(%(xact)s::text::xid8) AS fate
