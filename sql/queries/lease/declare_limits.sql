-- Set the concurrency limits that the loaded handlers declare, and remove those that they no longer declare. Run
-- by each child process once it has loaded them. A limit that a user has set stays as it is.
-- Race: `withdrawn` locks before it reads. Otherwise a pause that is committed meanwhile would match neither
-- case, and the limit would stay. paused_at is written with the value that was read: constraints are checked
-- before the row that was written meanwhile. A limit that stays as it is is only read: a process that starts
-- must not wait for an open transaction that holds the row.
WITH declared AS MATERIALIZED (
    SELECT name, most FROM unnest(%(names)s::text[], %(max_running)s::integer[]) AS d (name, most)
), withdrawn AS MATERIALIZED (
    SELECT g.name, g.paused_at
      FROM jobherd.gates g JOIN declared d ON d.name = g.name
     WHERE g.scope = 'kind' AND d.most IS NULL AND g.limited_by = '@handler'
     ORDER BY g.name
       FOR UPDATE OF g
), dropped AS (
    DELETE FROM jobherd.gates g USING withdrawn w WHERE g.scope = 'kind' AND g.name = w.name AND w.paused_at IS NULL
), paused AS (
    UPDATE jobherd.gates g SET paused_at = w.paused_at, max_running = NULL, limited_at = NULL, limited_by = NULL
      FROM withdrawn w
     WHERE g.scope = 'kind' AND g.name = w.name AND w.paused_at IS NOT NULL
)
INSERT INTO jobherd.gates AS g (scope, name, max_running, limited_at, limited_by)
SELECT 'kind', d.name, d.most, clock_timestamp(), '@handler'
  FROM declared d
 WHERE d.most IS NOT NULL
   AND NOT EXISTS (SELECT FROM jobherd.gates o
                    WHERE o.scope = 'kind' AND o.name = d.name
                      AND (o.limited_by <> '@handler' OR (o.limited_by = '@handler' AND o.max_running = d.most)))
 ORDER BY d.name
ON CONFLICT (scope, name) DO UPDATE
   SET max_running = excluded.max_running, limited_at = coalesce(g.limited_at, excluded.limited_at), limited_by = '@handler'
 WHERE coalesce(g.limited_by, '@handler') = '@handler' AND g.max_running IS DISTINCT FROM excluded.max_running
