-- Limit each statement of this transaction to that many milliseconds. Run by hooks: a user's git push waits for
-- them.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true)
