-- Tie a look through the live tables or along the ids to the order of the ids: a plan that sorts reads all of what it is to read the head of.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', %(milliseconds)s::integer::text, true)
