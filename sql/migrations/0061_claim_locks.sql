-- Claims under a concurrency limit, or under the budget of a supervisor, are made one after another. They used to take advisory locks, which
-- any login of the database may take: a session that held such a key stopped all claims under that limit. And the keys were hashes, so
-- two limits could share one. Now a claim locks a row that only workers may write.
--
-- The rows are separate from gates: pause(), resume() and set_cap() lock their row there, and a worker must not wait for a caller whose
-- transaction stays open.
CREATE TABLE jobherd.claim_locks (
    scope text COLLATE "C" NOT NULL,                -- budget, supervisor, queue or kind
    name  text COLLATE "C" NOT NULL,                -- of a budget: the supervisor; of a supervisor's own limit: the supervisor and the queue
    PRIMARY KEY (scope, name)
);

-- Claims that hold locks by the old numbers are waited for.
LOCK TABLE jobherd.gates IN ACCESS EXCLUSIVE MODE;

-- Lock until the end of the transaction. In the order of rank (budget, a supervisor's own limit, queue, kind) a claim may wait: it holds only
-- locks of lower ranks, so no two claims wait for each other. Out of that order it only tries.
-- The first claim makes the row. Race: two claims that each make one row and then want the other's are a deadlock, once in the life of these
-- rows. The server ends one of the statements, and its worker repeats it.
CREATE OR REPLACE FUNCTION jobherd.lock_cap(rank integer, name text, INOUT held integer, OUT had boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    wanted CONSTANT text := ('{budget,supervisor,queue,kind}'::text[])[rank + 1];
BEGIN
    LOOP
        IF held < rank THEN
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_cap.name FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_cap.name FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        had := FOUND;
        EXIT WHEN had OR (held >= rank AND EXISTS (SELECT FROM jobherd.claim_locks l WHERE l.scope = wanted AND l.name = lock_cap.name));
        INSERT INTO jobherd.claim_locks (scope, name) VALUES (wanted, lock_cap.name) ON CONFLICT DO NOTHING;
    END LOOP;
    IF had THEN held := greatest(held, rank); END IF;
END $$;
