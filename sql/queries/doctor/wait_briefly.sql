-- Until the transaction ends, wait for somebody's lock for no longer than so many milliseconds: who looks for what holds jobs up must not be held up by it.
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
