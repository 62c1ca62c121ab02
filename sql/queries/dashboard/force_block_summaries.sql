-- Make a query over a range of the history use its block summaries, and limit it to the time that is left for
-- it.
SELECT set_config('enable_seqscan', 'off', true), set_config('statement_timeout', %(milliseconds)s::integer::text, true)
