-- No statement of this transaction may run longer than that many milliseconds, and none is compiled: planned as if the past were one of millions,
-- a look at one job took 0.3 s. Times are written in the one way that the driver reads, whatever the style of role or database. Run by those who
-- look on: a page must not weigh on the jobs. For the transaction alone: behind a pooler the next one on this backend is a stranger's.
SELECT set_config('statement_timeout', %(milliseconds)s::integer::text, true), set_config('jit', 'off', true), set_config('DateStyle', 'ISO', true)
