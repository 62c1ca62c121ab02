-- Make a worker's session, or only this transaction (%(local)s), use index plans. Otherwise a plan made while
-- the tables were small or never analyzed would be kept, and read the whole backlog for every claim. A claim
-- under concurrency limits counts what has been committed since it began: a role whose transactions are
-- repeatable reads would see none of that. NULL in a list must mean null, whatever role and database set:
-- otherwise no outcome could be written. The bytes of a job's extras must be hex digits, which the worker reads.
-- With row_security off, PostgreSQL rejects each statement about a table with policies.
SELECT set_config('enable_seqscan', 'off', %(local)s::boolean), set_config('enable_bitmapscan', 'off', %(local)s::boolean),
       set_config('plan_cache_mode', 'force_generic_plan', %(local)s::boolean), set_config('jit', 'off', %(local)s::boolean),
       set_config('default_transaction_isolation', 'read committed', %(local)s::boolean),
       set_config('array_nulls', 'on', %(local)s::boolean), set_config('extra_float_digits', '1', %(local)s::boolean),
       set_config('bytea_output', 'hex', %(local)s::boolean), set_config('row_security', 'on', %(local)s::boolean)
