-- Lock the row of a claim, whose only job must be this one: the first statement of a job's transaction. No
-- row means that the claim is lost. Returns the transaction's id.
--
-- The weakest lock is enough: no process can settle, release or reclaim the job before the transaction has
-- ended. The job's timeout decides how long the transaction may be open, whatever role and database set. For the
-- handler's own statements their limits apply.
SELECT pg_current_xact_id()::text AS xact, set_config('idle_in_transaction_session_timeout', '0', true),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END
  FROM jobherd.running
 WHERE child = %(child)s AND token = %(token)s AND cardinality(jobs) = 1 AND jobs[1].id = %(job)s
   FOR KEY SHARE
