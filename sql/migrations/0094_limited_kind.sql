-- running.kind looked like the kind of a claim's jobs. Only a claim under a concurrency limit sets it. Such a claim holds
-- one job, and the column has its kind: `limited_kind`.
ALTER TABLE jobherd.running RENAME COLUMN kind TO limited_kind;
ALTER INDEX jobherd.running_alone_by_queue RENAME TO running_limited_by_queue;
ALTER INDEX jobherd.running_by_kind RENAME TO running_by_limited_kind;

CREATE OR REPLACE FUNCTION jobherd.count_running(scope text, name text, capped_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    until CONSTANT timestamptz := coalesce((SELECT g.seen_at FROM jobherd.gates g WHERE g.scope = count_running.scope AND g.name = count_running.name)
                                           + interval '10 s', 'infinity');
BEGIN
    IF scope = 'queue' THEN
        RETURN (SELECT count(*) FROM jobherd.running r WHERE r.queue = count_running.name AND r.limited_kind IS NOT NULL)
             + (SELECT coalesce(sum(cardinality(r.jobs)), 0) FROM jobherd.running r
                 WHERE r.limited_kind IS NULL AND r.claimed_at < until AND r.queue = count_running.name);
    END IF;
    RETURN (SELECT count(*) FROM jobherd.running r WHERE r.limited_kind = count_running.name)
         + (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
             WHERE r.limited_kind IS NULL AND r.claimed_at < until AND j.kind = count_running.name);
END $$;

CREATE OR REPLACE FUNCTION jobherd.wake_held() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = OLD.child AND c.backend_pid = pg_backend_pid()) THEN
        PERFORM jobherd.tell_sleepers(CASE WHEN EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = OLD.limited_kind) THEN '*'
                                           ELSE OLD.queue END);
    END IF;
    RETURN NULL;
END $$;
