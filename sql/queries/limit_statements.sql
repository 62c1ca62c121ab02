-- No statement of this transaction may run longer than that many milliseconds, and none is compiled: planned as if the past were one of millions,
-- a look at one job took 0.3 s. Run by those who look on: a page must not weigh on the jobs. For the transaction alone: behind a pooler the
-- next one on this backend is a stranger's.
SELECT set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('jit', 'off', true)
