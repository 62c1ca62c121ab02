-- Tie a look through a stretch of the past to its summaries, and to the time that is left for it.
SELECT set_config('enable_seqscan', 'off', true), set_config('statement_timeout', %(milliseconds)s::integer::text, true)
