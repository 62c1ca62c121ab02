-- Whether a record waits, and whether any is in work by anybody. Run by a resetter, so that an idle worker is called.
SELECT EXISTS (SELECT FROM {table} AS t
                WHERE t.{state} IN ('queued', 'errored') AND (t.{process_after} IS NULL OR t.{process_after} <= now()) AND t.{cancel} IS NOT TRUE),
       EXISTS (SELECT FROM {table} AS t WHERE t.{state} = 'processing')
