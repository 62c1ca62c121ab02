-- What maintenance processes do for flows: they count what has ended, cancel the members of flows that are stopped, look
-- for members that have vanished, and delete old flows. A job that is deleted with SQL leaves no end: its flow would
-- stay open indefinitely. It counts as canceled.

-- Cancels up to `most` members of a flow: those that wait end now, running ones are interrupted, inner flows are stopped.
-- Rows that another session has locked are left for the next time. Returns how many have ended.
CREATE FUNCTION jobherd.stop_members(of_flow bigint, most integer)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    why    CONSTANT text := (SELECT f.stopping FROM jobherd.flows f WHERE f.id = of_flow);
    part   text;
    held   bigint[];
    gone   integer;
    total  integer := 0;
BEGIN
    UPDATE jobherd.flows f SET stopping = why
      FROM (SELECT i.id FROM jobherd.flows i WHERE i.outer_flow = of_flow AND i.state = 'open' AND i.stopping IS NULL
             ORDER BY i.id FOR UPDATE SKIP LOCKED) AS free
     WHERE f.id = free.id;
    INSERT INTO jobherd.cancels (job)
    SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
     WHERE (j.extras).flow = of_flow AND NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = j.id)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM jobherd.notify('jobherd_jobs', '@cancel');
    END IF;
    FOREACH part IN ARRAY '{blocked,scheduled,parked,ready}'::text[] LOOP
        EXECUTE format('SELECT array(SELECT id FROM jobherd.%I WHERE (extras).flow = $1 AND (extras).flow > 0 ORDER BY id LIMIT $2'
                       ' FOR UPDATE SKIP LOCKED)', part) INTO held USING of_flow, most;
        CONTINUE WHEN held = '{}';
        IF part = 'blocked' THEN
            -- An edge of a canceled job is not passed on. A retry of the flow finds out what became of its upstream job.
            UPDATE jobherd.edges e SET state = 'unknown', marked = true WHERE e.downstream = ANY (held) AND e.state IS NULL;
        END IF;
        EXECUTE format(
            'WITH gone AS (
                 DELETE FROM jobherd.%I t WHERE t.id = ANY ($1) RETURNING t.*
             )
             INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                          state, queue, kind, payload, extras, timeout, error_code, error)
             SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE ''UTC'')::date + coalesce(k.keep_failed, 30),
                    g.priority, g.attempts, g.max_attempts, g.crashes, ''cancelled'', g.queue, g.kind, g.payload, g.extras, g.timeout,
                    ''FLOW_CANCELLED'', $2
               FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind', part) USING held, why;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END $$;

-- Counts what has ended in one flow. Returns the number of rows of `ends`, null if another process has the flow.
CREATE FUNCTION jobherd.resolve_flow(of_flow bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    old    jobherd.flows;
    counts record;
    ended  integer := 0;
    alone  boolean := false;  -- no open transaction adds members
BEGIN
    SELECT * INTO old FROM jobherd.flows f WHERE f.id = of_flow FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM jobherd.flows f WHERE f.id = of_flow) THEN
        RETURN NULL;
    END IF;
    -- Race: an unsealed flow that is stopped ends only if no open transaction adds members to it. This must be known before the rows
    -- are taken: members that are added and committed in between would be missed.
    IF NOT old.sealed AND old.stopping IS NOT NULL THEN
        alone := pg_try_advisory_xact_lock(jobherd.seal_lock(of_flow));
    END IF;
    -- Race: all rows, in one statement that begins after the lock. With some of them, the end of a member could be counted
    -- before the members that it has added.
    WITH taken AS (
        DELETE FROM jobherd.ends e WHERE e.flow = of_flow RETURNING e.job, e.jobs, e.state, e.delta
    ), members AS (
        SELECT coalesce(array_agg(m.job), '{}') AS jobs, coalesce(array_agg(m.state), '{}') AS states, min(m.job) AS lowest, max(m.job) AS highest
          FROM (SELECT t.job, t.state FROM taken t WHERE t.delta < 0 AND t.jobs IS NULL
                UNION ALL SELECT unnest(t.jobs), t.state FROM taken t) AS m
    )
    SELECT s.*, m.* INTO counts
      FROM (SELECT count(*) AS rows, coalesce(sum(t.delta), 0) AS delta,
                   coalesce(sum(-t.delta) FILTER (WHERE t.state = 'completed'), 0) AS completed,
                   coalesce(sum(-t.delta) FILTER (WHERE t.state IN ('failed', 'expired')), 0) AS failed,
                   coalesce(sum(-t.delta) FILTER (WHERE t.state = 'cancelled'), 0) AS cancelled
              FROM taken t) AS s CROSS JOIN members m;
    IF old.keeps AND counts.jobs <> '{}' THEN
        INSERT INTO jobherd.results (flow, item, result)
        SELECT DISTINCT ON (h.id) of_flow, (h.extras).item, h.result FROM jobherd.history h
         WHERE h.id = ANY (counts.jobs) AND h.state = 'completed' AND (h.extras).item IS NOT NULL ORDER BY h.id, h.finished_at DESC
        ON CONFLICT (flow, item) DO UPDATE SET result = excluded.result;
    END IF;
    -- Cost: one probe tells that no other job waits for one of these, as in a group.
    IF EXISTS (SELECT FROM jobherd.edges g WHERE g.upstream BETWEEN counts.lowest AND counts.highest AND g.state IS NULL) THEN
        INSERT INTO jobherd.ends (flow, job, state, delta)
        SELECT 0, e.job, e.state, 0 FROM unnest(counts.jobs, counts.states) AS e (job, state)
         WHERE EXISTS (SELECT FROM jobherd.edges g WHERE g.upstream = e.job AND g.state IS NULL);
    END IF;
    IF old.state IS DISTINCT FROM 'open' THEN
        -- A member that was run again after the end of its flow. Race: retry_flow counts the members instead. In REPEATABLE READ it
        -- would count in a snapshot that still has these rows, unless the row of the flow changes.
        UPDATE jobherd.flows f SET pending = f.pending WHERE f.id = of_flow AND counts.rows > 0;
        RETURN counts.rows;
    END IF;
    UPDATE jobherd.flows f
       SET pending = f.pending + counts.delta, completed = f.completed + counts.completed, failed = f.failed + counts.failed,
           cancelled = f.cancelled + counts.cancelled,
           stopping = CASE WHEN f.stopping IS NULL AND f.policy = 'cancel' AND f.failed + counts.failed > 0
                           THEN 'another job of the flow failed' ELSE f.stopping END
     WHERE f.id = of_flow RETURNING * INTO old;
    IF old.stopping IS NOT NULL AND old.pending > 0 THEN
        ended := jobherd.stop_members(of_flow, most);
    END IF;
    IF old.pending <= 0 AND (old.sealed OR alone) THEN
        UPDATE jobherd.flows f
           SET state = CASE WHEN f.failed > 0 THEN 'failed' WHEN f.cancelled > 0 THEN 'cancelled' ELSE 'completed' END,
               ended_at = clock_timestamp(), stopping = NULL, sealed = true
         WHERE f.id = of_flow RETURNING * INTO old;
        INSERT INTO jobherd.ends (flow, job, state, delta)
        SELECT coalesce(old.outer_flow, 0), of_flow, old.state, CASE WHEN old.outer_flow IS NULL THEN 0 ELSE -1 END
         WHERE old.outer_flow IS NOT NULL OR EXISTS (SELECT FROM jobherd.edges g WHERE g.upstream = of_flow AND g.state IS NULL);
    END IF;
    RETURN counts.rows + ended;
END $$;

-- Resolves flows that have rows in `ends`, and flows that are being stopped or are past their deadline. Returns the number of rows.
--
-- Fairness: it begins at a random flow and ends after 0.2 s, so one user's many flows delay neither due jobs nor, for long,
-- the flows of others. A flow that raises an error is left, and the others are resolved.
CREATE FUNCTION jobherd.resolve_flows(most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    until    CONSTANT timestamptz := clock_timestamp() + interval '0.2 s';
    alone    boolean := false;  -- each flow in a subtransaction
    place    bigint;
    wrapped  boolean;
    begins   bigint;
    tried    integer := 0;
    found_one bigint;
    part     text;
    total    bigint := 0;
BEGIN
    -- Race: a flow that a user's open transaction has locked is left for the next look. Such a transaction must not delay maintenance.
    UPDATE jobherd.flows f SET stopping = 'the deadline of the flow has passed'
      FROM (SELECT d.id FROM jobherd.flows d WHERE d.deadline < now() AND d.state = 'open' AND d.stopping IS NULL
             ORDER BY d.id LIMIT most FOR UPDATE SKIP LOCKED) AS late
     WHERE f.id = late.id;
    LOOP
        BEGIN
            FOREACH part IN ARRAY '{ends,stopping}'::text[] LOOP
                IF part = 'ends' THEN
                    SELECT min(e.flow) + floor(random() * (max(e.flow) - min(e.flow) + 1)) INTO begins FROM jobherd.ends e WHERE e.flow > 0;
                ELSE
                    SELECT min(f.id) + floor(random() * (max(f.id) - min(f.id) + 1)) INTO begins FROM jobherd.flows f WHERE f.stopping IS NOT NULL;
                END IF;
                CONTINUE WHEN begins IS NULL;
                place := begins - 1;
                wrapped := false;
                LOOP
                    IF part = 'ends' THEN
                        SELECT e.flow INTO found_one FROM jobherd.ends e WHERE e.flow > place ORDER BY e.flow LIMIT 1;
                    ELSE
                        SELECT f.id INTO found_one FROM jobherd.flows f WHERE f.id > place AND f.stopping IS NOT NULL AND f.state = 'open' ORDER BY f.id LIMIT 1;
                    END IF;
                    IF found_one IS NULL AND NOT wrapped THEN
                        wrapped := true;
                        place := 0;
                        CONTINUE;
                    END IF;
                    EXIT WHEN found_one IS NULL OR wrapped AND found_one >= begins;
                    place := found_one;
                    IF alone THEN
                        BEGIN
                            total := total + coalesce(jobherd.resolve_flow(place, most), 0);
                        EXCEPTION WHEN OTHERS THEN
                            RAISE WARNING 'jobherd: flow % cannot be resolved: %', place, SQLERRM;
                        END;
                        tried := tried + 1;
                        EXIT WHEN tried >= 50;  -- Cost: more subtransactions slow down the snapshots of all sessions
                    ELSE
                        total := total + coalesce(jobherd.resolve_flow(place, most), 0);
                    END IF;
                    EXIT WHEN clock_timestamp() > until;
                END LOOP;
            END LOOP;
            RETURN total;
        EXCEPTION WHEN OTHERS THEN
            IF alone THEN
                RAISE;
            END IF;
            total := 0;
            alone := true;
        END;
    END LOOP;
END $$;

-- Looks for vanished members of up to `most` open flows behind the flow `past`. Returns the last flow, null after the last page.
--
-- Invariant: `pending` and the rows in `ends` together are the live members, in each snapshot: each statement that moves, adds or
-- ends a member writes both. So one statement reads all of it.
CREATE FUNCTION jobherd.find_vanished_members(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    page bigint[];
    held bigint[];
BEGIN
    page := array(SELECT f.id FROM jobherd.flows f WHERE f.state = 'open' AND f.id > coalesce(past, 0) ORDER BY f.id LIMIT most);
    -- Race: two processes would count the same vanished member, and the flow would end too early. The statement that compares begins
    -- after the lock.
    held := array(SELECT f.id FROM jobherd.flows f WHERE f.id = ANY (page) ORDER BY f.id FOR UPDATE SKIP LOCKED);
    INSERT INTO jobherd.ends (flow, state, delta)
    SELECT o.id, 'cancelled', -o.missing::integer
      FROM (SELECT f.id, f.pending + (SELECT coalesce(sum(e.delta), 0) FROM jobherd.ends e WHERE e.flow = f.id)
                   - (SELECT count(*) FROM jobherd.ready r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.parked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.scheduled r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.blocked r WHERE (r.extras).flow = f.id AND (r.extras).flow > 0)
                   - (SELECT count(*) FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE (j.extras).flow = f.id)
                   - (SELECT count(*) FROM jobherd.flows i WHERE i.outer_flow = f.id AND i.state = 'open') AS missing
              FROM jobherd.flows f WHERE f.id = ANY (held) AND f.state = 'open') AS o
     WHERE o.missing > 0;
    RETURN CASE WHEN cardinality(page) >= most THEN page[most] END;
END $$;

-- Deletes flows that ended 30 days ago, up to `most`, with their edges and results.
CREATE FUNCTION jobherd.delete_flows(most integer)
RETURNS SETOF bigint
LANGUAGE sql
AS $$
    WITH old AS MATERIALIZED (
        SELECT f.id FROM jobherd.flows f WHERE f.ended_at < clock_timestamp() - interval '30 days' ORDER BY f.ended_at LIMIT most FOR UPDATE SKIP LOCKED
    ), untied AS (
        DELETE FROM jobherd.edges e USING old o WHERE e.flow = o.id
    ), forgotten AS (
        DELETE FROM jobherd.results r USING old o WHERE r.flow = o.id
    )
    DELETE FROM jobherd.flows f USING old o WHERE f.id = o.id RETURNING f.id
$$;
