-- No statement of this transaction may run longer than that many milliseconds. Run by hooks: somebody's git push waits for them.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true)
