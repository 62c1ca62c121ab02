-- Tie a child's session to the index plans, or this transaction alone (%(local)s). A plan made while the tables were small or never analyzed would otherwise be kept,
-- and read the whole backlog for every claim. A claim under caps counts what has been committed since it began: a role whose transactions
-- are repeatable reads would see none of that. And NULL in a list is none, whatever role and database say: else no outcome could be written.
-- With row_security off, PostgreSQL refuses each statement about a table with policies.
SELECT set_config('enable_seqscan', 'off', %(local)s::boolean), set_config('enable_bitmapscan', 'off', %(local)s::boolean),
       set_config('plan_cache_mode', 'force_generic_plan', %(local)s::boolean), set_config('jit', 'off', %(local)s::boolean),
       set_config('default_transaction_isolation', 'read committed', %(local)s::boolean),
       set_config('array_nulls', 'on', %(local)s::boolean), set_config('extra_float_digits', '1', %(local)s::boolean),
       set_config('row_security', 'on', %(local)s::boolean)
