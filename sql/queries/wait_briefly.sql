-- Until the transaction ends, wait for nobody's lock longer than so many milliseconds. Run by the doctor, which looks for what holds jobs up and must not be
-- held up by it, and by migrations, behind whose wait everybody else would wait.
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
