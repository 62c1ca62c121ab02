-- Delete the rollup of the time before the last %(days)s days, or before as many as any kind keeps its jobs. Run
-- by maintenance processes, seldom.
WITH until AS MATERIALIZED (
    SELECT clock_timestamp() - make_interval(days => greatest(%(days)s::integer, (SELECT max(greatest(k.keep_completed, k.keep_failed)) FROM jobherd.kinds k)))
           AS at
), times AS (
    DELETE FROM jobherd.rollup_times WHERE at < (SELECT at FROM until)
), failures AS (
    DELETE FROM jobherd.rollup_failures WHERE at < (SELECT at FROM until)
), scopes AS (
    DELETE FROM jobherd.rollup_scopes WHERE at < (SELECT at FROM until)
)
DELETE FROM jobherd.rollup WHERE at < (SELECT at FROM until)
