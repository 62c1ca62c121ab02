-- Store what a push brought, once. Run by push:process: of two that process it at the same time only one gets a
-- row back, and continues to enqueue.
UPDATE jobherd.forge_push_events e
   SET processed_at = clock_timestamp(), change = %(change)s, dropped = %(dropped)s, note = %(note)s,
       commits = c.commits, merges = c.merges, added = c.added, deleted = c.deleted
  FROM (SELECT count(*) AS commits, count(*) FILTER (WHERE merge) AS merges, coalesce(sum(added), 0) AS added,
               coalesce(sum(deleted), 0) AS deleted
          FROM jobherd.forge_commits WHERE push_event = %(id)s) AS c
 WHERE e.id = %(id)s AND e.processed_at IS NULL
RETURNING e.ref, e.change, e.commits, e.merges, e.added, e.deleted, e.dropped, e.note
