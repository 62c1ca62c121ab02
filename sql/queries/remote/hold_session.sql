-- Lock a session until the end of the transaction, or raise an error (SQLSTATE JHSES) unless this gateway still
-- serves it. Run by the gateway in front of each statement by which it acts on the session without a request of
-- the worker: settle_jobs.sql for an expired job, requeue_unacknowledged.sql, requeue_rest.sql. A session that is
-- being resumed waits for the end of this transaction.
-- Send it in one exchange with these statements, so that the server ends the transaction even if the gateway is
-- stopped meanwhile. For several sessions, send their statements in the order of their ids.
-- Parameters: session, attached. One row without a value.
SELECT jobherd.hold_session(%(session)s::bigint, %(attached)s::integer)
