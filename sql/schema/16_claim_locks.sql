-- Locks of claims under limits and budgets, and what such a claim needs besides. A claim without any of
-- them is a plain statement (claim/claim_jobs, claim/claim_job) and uses none of this.

-- Locks of the claims under a limit or a budget. Rows, not advisory locks: any login can take an
-- advisory lock and stop all claims under a limit, and hashed keys can collide. Not the rows of
-- `gates`: pause(), resume() and set_limit() lock those, and a worker must not wait for a caller whose
-- transaction stays open.
CREATE TABLE jobherd.claim_locks (
    scope text COLLATE "C" NOT NULL,                    -- budget, supervisor, queue or kind
    name  text COLLATE "C" NOT NULL,                    -- budget: the supervisor; supervisor: that and the queue
    PRIMARY KEY (scope, name)
);
COMMENT ON TABLE jobherd.claim_locks IS 'Rows that a claim locks to claim one after another.';

-- Locks until the end of the transaction. In the order of rank (budget, a supervisor's own limit,
-- queue, kind) a claim may wait: it holds only locks of lower ranks, so no two claims wait for each
-- other. Out of that order it only tries. The first claim creates the row. Race: two claims that each
-- create one row and then want the other's are a deadlock, once in the life of these rows. PostgreSQL
-- cancels one of the statements, and its worker repeats it.
CREATE FUNCTION jobherd.lock_limit(rank integer, name text, INOUT held integer, OUT had boolean)
RETURNS record
LANGUAGE plpgsql
AS $$
DECLARE
    wanted CONSTANT text := ('{budget,supervisor,queue,kind}'::text[])[rank + 1];
BEGIN
    LOOP
        IF held < rank THEN
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name
                FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        had := FOUND;
        EXIT WHEN had OR (held >= rank AND EXISTS (
            SELECT FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_limit.name));
        INSERT INTO jobherd.claim_locks (scope, name) VALUES (wanted, lock_limit.name) ON CONFLICT DO NOTHING;
    END LOOP;
    IF had THEN held := greatest(held, rank); END IF;
END $$;

-- Returns how much of a claim a job fills, see claim/claim_jobs.
CREATE FUNCTION jobherd.share_of(job jobherd.ready, kinds text[], shares real[])
RETURNS real
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN (job).alone THEN 2 WHEN kinds IS NULL THEN 0
                ELSE coalesce(shares[array_position(kinds, (job).kind)], 1) END
           + (pg_column_size((job).payload) + coalesce(pg_column_size((job).extras), 0))::real / 1000000::real
$$;

-- Trigger, after a row of a limited job has left `running`: a slot is free. The worker that settles a
-- job claims next and sees it. All other processes that delete the row notify idle workers.
CREATE FUNCTION jobherd.wake_held()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM jobherd.children c WHERE c.id = OLD.child AND c.backend_pid = pg_backend_pid()) THEN
        PERFORM jobherd.tell_sleepers(
            CASE WHEN EXISTS (SELECT FROM jobherd.gates g WHERE g.scope = 'kind' AND g.name = OLD.limited_kind) THEN '*'
                 ELSE OLD.queue END);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER DELETE ON jobherd.running FOR EACH ROW
    WHEN (OLD.limited_kind IS NOT NULL) EXECUTE FUNCTION jobherd.wake_held();
