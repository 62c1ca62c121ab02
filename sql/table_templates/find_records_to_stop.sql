-- Find the records that run on this host and must stop: flagged, deleted, claimed by another process,
-- or awaited by a DELETE. Run by a resetter. A DELETE cannot pass the lock of the attempt, so it is seen
-- waiting. It holds the tuple in its strongest mode, has locked the table for writing (a session that only locks
-- the row has not), and is blocked by the session of the attempt.
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
