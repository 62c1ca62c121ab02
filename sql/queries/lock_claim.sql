-- The first statement of a job's transaction: hold the row of its claim, of which it must be the only job, or return nothing; then the
-- claim is lost. Returns the transaction's id.
--
-- The weakest lock is enough: nobody can settle, give back or reclaim the job before the transaction has ended. How long the transaction may be open is said by the job's timeout,
-- whatever role and database say; for the handler's own statements their limits hold.
SELECT pg_current_xact_id()::text AS xact, set_config('idle_in_transaction_session_timeout', '0', true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END
  FROM jobherd.running
 WHERE child = %(child)s AND token = %(token)s AND cardinality(jobs) = 1 AND jobs[1].id = %(job)s
   FOR KEY SHARE
