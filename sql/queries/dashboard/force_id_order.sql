-- Make a query over the live tables or along the ids follow the order of the ids: a plan that sorts would read
-- all rows to return the first few.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', %(milliseconds)s::integer::text, true)
