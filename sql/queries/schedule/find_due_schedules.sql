-- Return up to %(most)s schedules for which a maintenance process must decide or plan an instant, each as JSON, and
-- the database's time. Locks nothing: jobherd.tick and jobherd.plan_schedules compare the revision. A paused
-- schedule runs only if a user asks for it. live: unfinished jobs of a backfill.
SELECT to_jsonb(s)::text AS schedule, to_json(clock_timestamp()) #>> '{}' AS now,
       CASE WHEN s.backfill IS NOT NULL
            THEN (SELECT count(*) FROM jobherd.ticks t
                   WHERE t.schedule = s.name AND t.decided = 'backfilled' AND jobherd.is_unfinished(t.job)) END AS live
  FROM jobherd.schedules s
 WHERE s.asked <> '{}'
    OR (s.paused_at IS NULL AND s.retired_at IS NULL
        AND (s.plan_from IS NOT NULL OR s.next_at <= now() OR s.backfill IS NOT NULL))
 ORDER BY s.next_at NULLS FIRST
 LIMIT %(most)s::integer
