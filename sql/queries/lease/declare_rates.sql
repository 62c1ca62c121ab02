-- Set the rate limits that the loaded handlers declare, and remove those that they no longer declare. Run by each
-- child process once it has loaded them, after declare_limits.sql, whose comments apply here. A burst of null is
-- the default.
WITH declared AS MATERIALIZED (
    SELECT d.name, d.rate, d.per, CASE WHEN d.rate IS NOT NULL THEN coalesce(d.burst, jobherd.default_burst(d.rate, d.per)) END AS burst
      FROM unnest(%(names)s::text[], %(rates)s::integer[], %(pers)s::double precision[], %(bursts)s::integer[]) AS d (name, rate, per, burst)
), withdrawn AS MATERIALIZED (
    SELECT g.name, g.paused_at, g.max_running
      FROM jobherd.gates g JOIN declared d ON d.name = g.name
     WHERE g.scope = 'kind' AND d.rate IS NULL AND g.rated_by = '@handler'
     ORDER BY g.name
       FOR UPDATE OF g
), dropped AS (
    DELETE FROM jobherd.gates g USING withdrawn w
     WHERE g.scope = 'kind' AND g.name = w.name AND w.paused_at IS NULL AND w.max_running IS NULL
), kept AS (
    UPDATE jobherd.gates g SET paused_at = w.paused_at, max_running = w.max_running, rate = NULL, per = NULL, burst = NULL, rated_by = NULL
      FROM withdrawn w
     WHERE g.scope = 'kind' AND g.name = w.name AND (w.paused_at IS NOT NULL OR w.max_running IS NOT NULL)
)
INSERT INTO jobherd.gates AS g (scope, name, rate, per, burst, rated_by)
SELECT 'kind', d.name, d.rate, d.per, d.burst, '@handler'
  FROM declared d
 WHERE d.rate IS NOT NULL
   AND NOT EXISTS (SELECT FROM jobherd.gates o
                    WHERE o.scope = 'kind' AND o.name = d.name
                      AND (o.rated_by <> '@handler' OR (o.rate, o.per, o.burst) = (d.rate, d.per, d.burst)))
 ORDER BY d.name
ON CONFLICT (scope, name) DO UPDATE
   SET rate = excluded.rate, per = excluded.per, burst = excluded.burst, rated_by = '@handler'
 WHERE coalesce(g.rated_by, '@handler') = '@handler' AND (g.rate, g.per, g.burst) IS DISTINCT FROM (excluded.rate, excluded.per, excluded.burst)
