-- Return whether any work is left now: ready jobs, or jobs that run anywhere. Run by the supervisor of `run
-- --until-empty` once its child processes are idle.
SELECT EXISTS (SELECT FROM jobherd.waiting r
                WHERE jobherd.rank_queue(r.queue, %(served)s::text[]) IS NOT NULL
                  AND NOT EXISTS (SELECT FROM jobherd.gates g
                                   WHERE g.paused_at IS NOT NULL AND (g.scope, g.name) IN (('queue', r.queue), ('kind', r.kind), ('all', '*'))))
    OR EXISTS (SELECT FROM jobherd.running r WHERE jobherd.rank_queue(r.queue, %(served)s::text[]) IS NOT NULL)
    OR EXISTS (SELECT FROM jobherd.scheduled WHERE run_at <= now() AND jobherd.rank_queue(queue, %(served)s::text[]) IS NOT NULL)
    AS left_over
