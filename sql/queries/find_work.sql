-- Whether anything is left to do now: ready, or running anywhere. Run by the parent of `run --until-empty` once its children are idle.
SELECT EXISTS (SELECT FROM jobherd.ready r
                WHERE (%(served)s::text[] IS NULL OR r.queue = ANY (%(served)s::text[]))
                  AND NOT EXISTS (SELECT FROM jobherd.queues q WHERE q.name = r.queue AND q.paused_at IS NOT NULL))
    OR EXISTS (SELECT FROM jobherd.running r WHERE %(served)s::text[] IS NULL OR r.queue = ANY (%(served)s::text[]))
    OR EXISTS (SELECT FROM jobherd.scheduled WHERE run_at <= now() AND (%(served)s::text[] IS NULL OR queue = ANY (%(served)s::text[])))
    AS left_over
