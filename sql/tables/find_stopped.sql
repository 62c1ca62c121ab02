-- Of the records that run on this host, those that must not go on: flagged, gone, claimed by somebody else, or waited for by a DELETE.
-- Run by a resetter. A DELETE cannot pass the lock of the run, so it is seen waiting: it holds the tuple in its strongest mode, means
-- to write to the table (who only locks the row does not), and is held up by the session of the run.
SELECT r.record, r.token
  FROM unnest(%(records)s::bigint[], %(tokens)s::bigint[], %(sessions)s::text[]) AS r (record, token, session)
  LEFT JOIN {table} AS t
    ON t.{id} = r.record AND t.{state} = 'processing' AND (extract(epoch FROM t.{started_at}) * 1000000)::bigint = r.token
 WHERE t.{id} IS NULL
    OR t.{cancel}
    OR EXISTS (SELECT
                 FROM pg_locks w
                 JOIN pg_locks m ON m.pid = w.pid AND m.locktype = 'relation' AND m.relation = w.relation AND m.mode = 'RowExclusiveLock'
                 JOIN pg_stat_activity a
                   ON a.application_name = r.session AND a.datname = current_database() AND a.pid = ANY (pg_blocking_pids(w.pid))
                WHERE w.locktype = 'tuple' AND w.relation = to_regclass({quoted_table}) AND w.mode = 'AccessExclusiveLock')
