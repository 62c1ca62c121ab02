-- Set the caps that the loaded handlers declare, and take away those that they do not declare any more. Run by each child once it has loaded
-- them. A cap that somebody has set by hand stays as it is.
WITH declared AS MATERIALIZED (
    SELECT name, most FROM unnest(%(names)s::text[], %(max_running)s::integer[]) AS d (name, most)
), dropped AS (
    DELETE FROM jobherd.gates g USING declared d
     WHERE g.scope = 'kind' AND g.name = d.name AND d.most IS NULL AND g.capped_by = '@handler' AND g.paused_at IS NULL
), paused AS (
    UPDATE jobherd.gates g SET max_running = NULL, capped_at = NULL, capped_by = NULL
      FROM declared d
     WHERE g.scope = 'kind' AND g.name = d.name AND d.most IS NULL AND g.capped_by = '@handler' AND g.paused_at IS NOT NULL
)
INSERT INTO jobherd.gates AS g (scope, name, max_running, capped_at, capped_by)
SELECT 'kind', name, most, clock_timestamp(), '@handler' FROM declared WHERE most IS NOT NULL ORDER BY name
ON CONFLICT (scope, name) DO UPDATE
   SET max_running = excluded.max_running, capped_at = coalesce(g.capped_at, excluded.capped_at), capped_by = '@handler'
 WHERE coalesce(g.capped_by, '@handler') = '@handler' AND g.max_running IS DISTINCT FROM excluded.max_running
