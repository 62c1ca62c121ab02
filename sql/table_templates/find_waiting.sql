-- Return whether a record waits, and whether any record is in work. Run by a resetter, to wake an idle worker.
SELECT EXISTS (SELECT FROM {table} AS t
                WHERE t.{state} IN ('queued', 'errored') AND (t.{process_after} IS NULL OR t.{process_after} <= now()) AND t.{cancel} IS NOT TRUE
                  AND NOT EXISTS (SELECT FROM {gates} AS g
                                   WHERE g.paused_at IS NOT NULL AND (g.scope = 'all' OR (g.scope = 'kind' AND g.name = %(jobherd_kind)s)))),
       EXISTS (SELECT FROM {table} AS t WHERE t.{state} = 'processing')
