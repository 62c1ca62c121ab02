-- What maintenance processes do for jobs that wait for other jobs: they mark upstream jobs, pass on their ends, and look
-- for upstream jobs that have vanished. A job that is deleted with SQL leaves no end: other jobs would wait for it
-- indefinitely. It counts as canceled.

-- Marks the upstream jobs of new edges, and looks for those that have ended before. `past`: continue behind this job.
-- Returns the job up to which it has looked, null after the last one. Run by maintenance processes.
--
-- Race: one snapshot says where a job is. A job that has moved since is not found by the UPDATE, and its edge is left for
-- the next look. Running jobs too: changing the row of a claim would delay its settlement.
CREATE FUNCTION jobherd.mark_upstreams(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    jobs   bigint[];
    known  bigint[] := '{}';
    still  bigint[];
    ended  bigint[];
    states text[];
    flows  bigint[];
    part   text;
    found_ones bigint[];
BEGIN
    WITH RECURSIVE each (job, place) AS (  -- Cost: one look into the index for each job, however many edges it has
        SELECT min(e.upstream), 1 FROM jobherd.edges e WHERE NOT e.marked AND e.upstream > coalesce(past, 0)
        UNION ALL
        SELECT (SELECT min(e.upstream) FROM jobherd.edges e WHERE NOT e.marked AND e.upstream > each.job), place + 1
          FROM each WHERE job IS NOT NULL AND place < most
    )
    SELECT array_agg(job ORDER BY job) INTO jobs FROM each WHERE job IS NOT NULL;
    IF jobs IS NULL THEN
        RETURN NULL;
    END IF;
    WITH at AS MATERIALIZED (
        SELECT u.job,
               EXISTS (SELECT FROM jobherd.ready r WHERE r.id = u.job) OR EXISTS (SELECT FROM jobherd.scheduled s WHERE s.id = u.job)
               OR EXISTS (SELECT FROM jobherd.parked p WHERE p.id = u.job)
               OR EXISTS (SELECT FROM jobherd.blocked b WHERE b.id = u.job) AS waits,
               (SELECT f.state FROM jobherd.flows f WHERE f.id = u.job) AS flow_state,
               (SELECT (j.extras).flow IS NOT NULL FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
                 WHERE j.id = u.job LIMIT 1) AS runs_marked,
               (SELECT h.state FROM jobherd.history h WHERE h.id = u.job ORDER BY h.finished_at DESC LIMIT 1) AS state
          FROM unnest(jobs) AS u (job)
    )
    SELECT coalesce(array_agg(job) FILTER (WHERE waits), '{}'), coalesce(array_agg(job) FILTER (WHERE runs_marked), '{}'),
           array_agg(job) FILTER (WHERE flow_state = 'open'),
           array_agg(job) FILTER (WHERE NOT waits AND runs_marked IS NULL AND flow_state IS DISTINCT FROM 'open'),
           -- of a job that leaves no history: it has completed
           array_agg(coalesce(flow_state, state, 'completed')) FILTER (WHERE NOT waits AND runs_marked IS NULL AND flow_state IS DISTINCT FROM 'open')
      INTO still, known, flows, ended, states FROM at;
    -- Race: the process that ends the flow may have looked for jobs that wait before this one was there.
    known := known || array(SELECT f.id FROM jobherd.flows f WHERE f.id = ANY (flows) AND f.state = 'open' FOR SHARE SKIP LOCKED);
    FOREACH part IN ARRAY '{ready,scheduled,parked,blocked}'::text[] LOOP
        EXIT WHEN still = '{}';
        EXECUTE format('WITH free AS MATERIALIZED (SELECT id FROM jobherd.%1$I WHERE id = ANY ($1) FOR UPDATE SKIP LOCKED),'
                       ' done AS (UPDATE jobherd.%1$I t SET extras.flow = coalesce((t.extras).flow, 0) FROM free'
                       ' WHERE t.id = free.id RETURNING t.id)'
                       ' SELECT coalesce(array_agg(id), ''{}'') FROM done', part) INTO found_ones USING still;
        known := known || found_ones;
    END LOOP;
    IF ended IS NOT NULL THEN
        INSERT INTO jobherd.ends (flow, job, state) SELECT 0, e.job, e.state FROM unnest(ended, states) AS e (job, state);
        known := known || ended;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT e.downstream, e.upstream FROM jobherd.edges e WHERE e.upstream = ANY (known) AND NOT e.marked FOR UPDATE SKIP LOCKED
    )
    UPDATE jobherd.edges e SET marked = true FROM free f WHERE e.downstream = f.downstream AND e.upstream = f.upstream;
    RETURN CASE WHEN cardinality(jobs) >= most THEN jobs[cardinality(jobs)] END;
END $$;

-- Returns whether an upstream job that ended so is what the blocked job waits for.
CREATE FUNCTION jobherd.is_wanted(wanted text, state text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE wanted WHEN 'ended' THEN true WHEN 'completed' THEN state = 'completed' ELSE state IN ('failed', 'expired') END
$$;

-- Writes the ends of jobs into the edges of up to `most` blocked jobs, and releases or cancels those. Jobs that another
-- session has locked are left. Returns how many got an end, and how many of these were released and canceled.
--
-- Race: with several upstream jobs, the one that ends last releases. Two maintenance processes may each have one of
-- them. So the row of the blocked job is locked first, and the statement that decides begins after that.
CREATE FUNCTION jobherd.pass_on(ended bigint[], states text[], most integer, OUT told bigint, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    held bigint[];
    one  bigint;
    bound bigint[];
BEGIN
    told := 0;
    released := 0;
    cancelled := 0;
    held := array(SELECT b.id FROM jobherd.blocked b
                   WHERE b.id IN (SELECT e.downstream FROM jobherd.edges e WHERE e.upstream = ANY (ended) AND e.state IS NULL)
                   ORDER BY b.id LIMIT most FOR UPDATE SKIP LOCKED);
    IF held = '{}' THEN
        RETURN;
    END IF;
    told := cardinality(held);
    UPDATE jobherd.edges e
       SET state = s.state, marked = true,
           result = CASE WHEN e.argument IS NOT NULL THEN jobherd.result_of(s.job) END
      FROM unnest(ended, states) AS s (job, state)
     WHERE e.upstream = s.job AND e.downstream = ANY (held) AND e.state IS NULL;
    bound := array(SELECT e.downstream FROM jobherd.edges e WHERE e.downstream = ANY (held)
                    GROUP BY e.downstream
                   HAVING bool_or(e.argument IS NOT NULL) AND NOT bool_or(e.state IS NULL OR NOT jobherd.is_wanted(e.wanted, e.state)));
    IF bound <> '{}' THEN
        BEGIN
            SELECT coalesce(sum(jobherd.bind_results(b)), 0) INTO released FROM unnest(bound) AS b;
        EXCEPTION WHEN OTHERS THEN
            -- A result that cannot be passed on must not stop maintenance: only the job fails that was to get it.
            released := 0;
            FOREACH one IN ARRAY bound LOOP
                BEGIN
                    released := released + jobherd.bind_results(one);
                EXCEPTION WHEN OTHERS THEN
                    PERFORM jobherd.fail_blocked(one, 'the results that it gets cannot be stored: ' || left(SQLERRM, 300));
                    released := released + 1;
                END;
            END LOOP;
        END;
    END IF;
    WITH fate AS MATERIALIZED (
        SELECT e.downstream, bool_or(e.state IS NULL) AS open,
               (array_agg(e.upstream ORDER BY e.upstream) FILTER (WHERE NOT jobherd.is_wanted(e.wanted, e.state)))[1] AS bad
          FROM jobherd.edges e WHERE e.downstream = ANY (held) GROUP BY e.downstream
    ), gone AS (
        DELETE FROM jobherd.blocked b USING fate f
         WHERE b.id = f.downstream AND (f.bad IS NOT NULL OR NOT f.open)
        RETURNING b AS job, f.bad
    ), untied AS (
        DELETE FROM jobherd.edges e USING fate f
         WHERE e.downstream = f.downstream AND (f.bad IS NOT NULL OR NOT f.open) AND e.flow IS NULL
    ), unknown AS (
        UPDATE jobherd.edges e SET state = 'unknown', marked = true FROM fate f
         WHERE e.downstream = f.downstream AND f.bad IS NOT NULL AND e.state IS NULL AND e.flow IS NOT NULL
    ), past AS (
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT (g.job).id, (g.job).created_at, (g.job).run_at, clock_timestamp(),
               (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), (g.job).priority, (g.job).attempts,
               (g.job).max_attempts, (g.job).crashes, 'cancelled', (g.job).queue, (g.job).kind, (g.job).payload,
               (g.job).extras, (g.job).timeout, CASE u.wanted WHEN 'failed' THEN 'UPSTREAM_COMPLETED' ELSE 'UPSTREAM_FAILED' END,
               format('it waited for job %s %s, which %s', u.upstream,
                      CASE u.wanted WHEN 'failed' THEN 'to fail' ELSE 'to complete' END,
                      CASE u.state WHEN 'cancelled' THEN 'was canceled' WHEN 'skipped' THEN 'was not needed' ELSE u.state END)
          FROM gone g JOIN jobherd.edges u ON u.downstream = (g.job).id AND u.upstream = g.bad
               LEFT JOIN jobherd.kinds k ON k.name = (g.job).kind
        RETURNING id
    ), free AS MATERIALIZED (
        SELECT t.later,
               CASE WHEN t.later THEN g.job
                    ELSE jsonb_populate_record(g.job, jsonb_build_object(  -- see the index ready_came_back
                             'run_at', greatest(t.at, (g.job).created_at + interval '1 microsecond'))) END AS job
          FROM gone g CROSS JOIN LATERAL (SELECT c.at, (g.job).run_at > c.at AS later FROM (SELECT clock_timestamp() AS at) AS c OFFSET 0) AS t
         WHERE g.bad IS NULL
    ), later AS (
        INSERT INTO jobherd.scheduled SELECT (f.job).* FROM free f WHERE f.later
        RETURNING id
    ), now AS (
        INSERT INTO jobherd.ready SELECT (f.job).* FROM free f WHERE NOT f.later
        RETURNING id
    ), told AS MATERIALIZED (
        SELECT jobherd.tell_waiters(array_agg(id || '=cancelled')) FROM past HAVING count(*) > 0
    )
    SELECT released + (SELECT count(*) FROM later) + (SELECT count(*) FROM now), (SELECT count(*) FROM past) INTO released, cancelled
      FROM (SELECT) AS nothing LEFT JOIN told ON true;
END $$;

-- Passes on up to `most` ends of jobs that belong to no flow. An end stays until none of its edges is open.
CREATE FUNCTION jobherd.resolve_ends(most integer, OUT ended bigint, OUT released bigint, OUT cancelled bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    rows   bigint[];
    first  bigint := 0;
    jobs   bigint[];
    states text[];
    told   bigint;
BEGIN
    -- An end stays while a session holds the jobs that wait for it. With `most` of them at the front, all others would wait too.
    IF random() < 0.5 THEN
        SELECT min(e.id) + floor(random() * (max(e.id) - min(e.id) + 1)) INTO first FROM jobherd.ends e WHERE e.flow = 0;
    END IF;
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.state) INTO rows, jobs, states
      FROM (SELECT e.id, e.job, e.state FROM jobherd.ends e WHERE e.flow = 0 AND e.id >= first ORDER BY e.id LIMIT most FOR UPDATE SKIP LOCKED) AS f;
    ended := 0;
    IF rows IS NULL THEN
        RETURN;
    END IF;
    -- What is told counts as an end: jobs that still wait for another one would otherwise look as if nothing was left to do.
    SELECT p.told, p.released, p.cancelled INTO told, released, cancelled FROM jobherd.pass_on(jobs, states, most) AS p;
    DELETE FROM jobherd.ends e
     WHERE e.flow = 0 AND e.id = ANY (rows)
       AND NOT EXISTS (SELECT FROM jobherd.edges g JOIN jobherd.blocked b ON b.id = g.downstream
                        WHERE g.upstream = e.job AND g.state IS NULL);
    GET DIAGNOSTICS ended = ROW_COUNT;
    ended := ended + told;
END $$;

-- Looks for vanished jobs among up to `most` jobs behind `past` for which others wait. Returns the last one, null after the last page.
CREATE FUNCTION jobherd.find_vanished_upstreams(past bigint, most integer)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    page bigint[];
BEGIN
    WITH RECURSIVE each (job, place) AS (  -- Cost: one look into the index for each job, however many edges it has
        SELECT min(e.upstream), 1 FROM jobherd.edges e WHERE e.state IS NULL AND e.upstream > coalesce(past, 0)
        UNION ALL
        SELECT (SELECT min(e.upstream) FROM jobherd.edges e WHERE e.state IS NULL AND e.upstream > each.job), place + 1
          FROM each WHERE job IS NOT NULL AND place < most
    )
    SELECT array_agg(job ORDER BY job) INTO page FROM each WHERE job IS NOT NULL;
    INSERT INTO jobherd.ends (flow, job, state, delta)
    SELECT 0, u, coalesce((SELECT f.state FROM jobherd.flows f WHERE f.id = u),
                          (SELECT h.state FROM jobherd.history h WHERE h.id = u ORDER BY h.finished_at DESC LIMIT 1), 'cancelled'), 0
      FROM unnest(page) AS u
     WHERE NOT EXISTS (SELECT FROM jobherd.ready r WHERE r.id = u) AND NOT EXISTS (SELECT FROM jobherd.scheduled r WHERE r.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.parked r WHERE r.id = u) AND NOT EXISTS (SELECT FROM jobherd.blocked r WHERE r.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j WHERE j.id = u)
       AND NOT EXISTS (SELECT FROM jobherd.flows f WHERE f.id = u AND f.state = 'open')
       AND NOT EXISTS (SELECT FROM jobherd.ends e WHERE e.job = u OR u = ANY (e.jobs))
       -- Not marked yet: mark_upstreams decides, for which a job that left no history has completed.
       AND EXISTS (SELECT FROM jobherd.edges e WHERE e.upstream = u AND e.state IS NULL AND e.marked);
    RETURN CASE WHEN cardinality(page) >= most THEN page[most] END;
END $$;
