-- End the records that were canceled while they waited. Run by a resetter.
WITH flagged AS MATERIALIZED (
    SELECT t.{id} AS id FROM {table} AS t WHERE t.{state} IN ('queued', 'errored') AND t.{cancel} LIMIT 500 FOR UPDATE SKIP LOCKED
)
UPDATE {table} AS t
   SET {state} = 'canceled', {finished_at} = clock_timestamp(), {failure_message} = %(message)s
  FROM flagged
 WHERE t.{id} = flagged.id
RETURNING t.{id}
