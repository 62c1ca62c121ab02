-- Bound what the parent's session may wait for: it holds the lease, and a statement that waits for a lock must not outlast it. Whatever
-- role and database say of sessions that are idle, of isolation, or of how numbers and lists are written, is not for it. What follows a child's death is prepared: without the
-- generic plan its first five uses would be planned anew, while somebody's job waits.
SELECT set_config('statement_timeout', %(patience)s, false), set_config('lock_timeout', %(locks)s, false),
       set_config('idle_in_transaction_session_timeout', %(patience)s, false), set_config('idle_session_timeout', '0', false),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', false) END,
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('array_nulls', 'on', false), set_config('extra_float_digits', '1', false),
       set_config('plan_cache_mode', 'force_generic_plan', false)
