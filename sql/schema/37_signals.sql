-- Signals: what is sent to a job that waits for it, or to all jobs that wait for a topic.
--
-- Neither side locks what the other writes. A signal is a row in `signals`, a job that waits has a row in `waits`, which is
-- written in the transaction that suspends it. Maintenance processes check each new row after its commit: they
-- search waits for a new signal, and signals for a new wait. The one that is checked second finds the other
-- (jobherd.match_signals). tests/models/signal.pml proves the protocol. A job takes the signals of a topic by their ids:
-- the lowest that it has not taken. Its steps say which it has.

CREATE TABLE jobherd.signals (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic   text COLLATE "C" NOT NULL,
    payload json,
    tenants text[],                                     -- whose jobs get it; null: all
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    matched boolean NOT NULL DEFAULT false              -- it was looked for waits
)
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.signals IS 'Signals of the last 30 days.';
CREATE INDEX signals_topic ON jobherd.signals (topic, id);
CREATE INDEX signals_new ON jobherd.signals (id) WHERE NOT matched;

CREATE TABLE jobherd.waits (
    job    bigint PRIMARY KEY,
    name   text COLLATE "C" NOT NULL,                   -- of the step that waits
    topic  text COLLATE "C" NOT NULL,
    tenant text,
    until  timestamptz,                                 -- null: no timeout
    looked boolean NOT NULL DEFAULT false,              -- it was looked for signals
    flow   bigint                                       -- of the children for which the job waits, not for a signal
)
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE jobherd.waits IS 'Suspended jobs that wait for a signal.';
CREATE INDEX waits_topic ON jobherd.waits (topic, job);
CREATE INDEX waits_new ON jobherd.waits (job) WHERE NOT looked;

-- Sends a signal to all jobs that wait for a topic, now or in the next 30 days, and returns its id. It is part of the
-- caller's transaction. Signals of a tenant reach jobs of that tenant only. It runs as the owner: callers may not
-- write `signals`.
CREATE FUNCTION jobherd.signal(topic text, payload jsonb DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    who    CONSTANT name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
    number bigint;
BEGIN
    IF NOT has_column_privilege(who, 'jobherd.ready', 'payload', 'INSERT') THEN
        RAISE EXCEPTION 'jobherd.signal: role % must not send signals', quote_ident(who) USING ERRCODE = 'insufficient_privilege';
    ELSIF topic IS NULL OR topic = '' OR length(topic) > 300 THEN
        RAISE EXCEPTION 'jobherd.signal: a topic has 1 to 300 characters' USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(payload::text) > 1000000 THEN
        RAISE EXCEPTION 'jobherd.signal: the payload has more than 1000000 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO jobherd.signals (topic, payload, tenants)
    VALUES (signal.topic, signal.payload::json, CASE WHEN jobherd.is_tenant() THEN jobherd.own_tenants() END)
    RETURNING id INTO number;
    PERFORM jobherd.notify('jobherd_jobs', '@due');
    RETURN number;
END $$;
COMMENT ON FUNCTION jobherd.signal IS
    'Sends a signal to the jobs that wait for a topic, now or in the next 30 days. Returns its id.';

-- Sends a signal to one job, for its `job.wait_for(name)`. Returns the id of the signal, null if the job does not exist, or is not
-- visible to the caller.
CREATE FUNCTION jobherd.signal_job(job_id bigint, name text, payload jsonb DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jobherd.jobs j WHERE j.id = job_id
                  AND (NOT jobherd.is_tenant() OR j.tenant = ANY (jobherd.own_tenants()))) THEN
        RETURN jobherd.signal('job/' || job_id || '/' || name, payload);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION jobherd.signal_job IS
    'Sends a signal to one job that waits for it, now or later. Returns its id, or null if the job does not exist.';

-- Makes suspended jobs ready for which there is a signal, or whose children have ended. Checks up to `most` new signals and as
-- many new waits.
-- again: some were locked by another session, or are left. Run by maintenance processes.
--
-- Invariant: each statement sees what was committed when it began. So a row that it marks as checked was locked before the
-- check began. A signal stays new while a wait of its topic is locked: its worker may be about to commit it.
CREATE FUNCTION jobherd.match_signals(most integer, OUT woken bigint, OUT again boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    ids   bigint[];
    about text[];
    held  bigint[];
    busy  text[];
    found bigint[];
    free  bigint[];
    there bigint[];
BEGIN
    woken := 0;
    again := false;
    SELECT array_agg(f.id), array_agg(DISTINCT f.topic) INTO ids, about
      FROM (SELECT s.id, s.topic FROM jobherd.signals s WHERE NOT s.matched ORDER BY s.id LIMIT most FOR UPDATE SKIP LOCKED) AS f;
    IF ids IS NOT NULL THEN
        held := array(SELECT w.job FROM jobherd.waits w WHERE w.topic = ANY (about) FOR UPDATE SKIP LOCKED);
        UPDATE jobherd.waits w SET looked = false WHERE w.job = ANY (held) AND w.looked;
        busy := array(SELECT DISTINCT w.topic FROM jobherd.waits w WHERE w.topic = ANY (about) AND w.job <> ALL (held));
        UPDATE jobherd.signals s SET matched = true WHERE s.id = ANY (ids) AND s.topic <> ALL (busy);
        again := cardinality(busy) > 0 OR cardinality(ids) = most;
    END IF;
    held := array(SELECT w.job FROM jobherd.waits w WHERE NOT w.looked ORDER BY w.job LIMIT most FOR UPDATE SKIP LOCKED);
    IF held = '{}' THEN
        RETURN;
    END IF;
    again := again OR cardinality(held) = most;
    found := array(SELECT w.job FROM jobherd.waits w
                    WHERE w.job = ANY (held)
                      AND CASE WHEN w.flow IS NOT NULL THEN NOT EXISTS (SELECT FROM jobherd.flows o WHERE o.id = w.flow AND o.state = 'open')
                          ELSE EXISTS (SELECT FROM jobherd.signals s
                                        WHERE s.topic = w.topic AND (s.tenants IS NULL OR w.tenant = ANY (s.tenants))
                                          AND NOT EXISTS (SELECT FROM jobherd.steps t WHERE t.job = w.job AND t.signal = s.id)) END);
    free := array(SELECT s.id FROM jobherd.scheduled s WHERE s.id = ANY (found) FOR UPDATE SKIP LOCKED);
    there := array(SELECT s.id FROM jobherd.scheduled s WHERE s.id = ANY (found) AND s.id <> ALL (free));
    WITH gone AS (
        DELETE FROM jobherd.scheduled s WHERE s.id = ANY (free) RETURNING s AS job
    ), now AS (
        INSERT INTO jobherd.ready
        SELECT (p.job).*
          FROM gone g CROSS JOIN LATERAL (
               SELECT jsonb_populate_record(g.job::text::jobherd.ready, jsonb_build_object(  -- see the index ready_came_back
                          'run_at', greatest(clock_timestamp(), (g.job).created_at + interval '1 microsecond'))) AS job OFFSET 0) AS p
        RETURNING id
    )
    SELECT count(*) INTO woken FROM now;
    DELETE FROM jobherd.waits w WHERE w.job = ANY (free);
    -- A job that is not suspended any more looks for itself when it runs.
    UPDATE jobherd.waits w SET looked = true WHERE w.job = ANY (held) AND w.job <> ALL (there);
    again := again OR cardinality(there) > 0;
END $$;

-- Deletes the waits of jobs that are neither suspended nor about to run, among the `most` behind `past`, and lets the
-- others be checked again: what should not happen, a lost match, is found within a round. Returns the last of these jobs,
-- null if there are no more.
CREATE FUNCTION jobherd.sweep_waits(past bigint, most integer, OUT last bigint, OUT deleted bigint)
LANGUAGE plpgsql
SET jit = off
AS $$
DECLARE
    found bigint[];
    held  bigint[];
BEGIN
    deleted := 0;
    found := array(SELECT w.job FROM jobherd.waits w WHERE w.job > coalesce(past, 0) ORDER BY w.job LIMIT most);
    IF found = '{}' THEN
        RETURN;
    END IF;
    last := found[cardinality(found)];
    held := array(SELECT w.job FROM jobherd.waits w WHERE w.job = ANY (found) FOR UPDATE SKIP LOCKED);
    WITH running AS MATERIALIZED (
        SELECT j.id FROM jobherd.running c CROSS JOIN LATERAL unnest(c.jobs) AS j
    ), gone AS (
        DELETE FROM jobherd.waits w
         WHERE w.job = ANY (held)
           AND (SELECT true FROM jobherd.scheduled s WHERE s.id = w.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.ready r WHERE r.id = w.job) IS NOT TRUE
           AND (SELECT true FROM jobherd.parked p WHERE p.id = w.job) IS NOT TRUE
           AND w.job NOT IN (SELECT r.id FROM running r)
        RETURNING true
    )
    SELECT count(*) INTO deleted FROM gone;
    UPDATE jobherd.waits w SET looked = false WHERE w.job = ANY (held) AND w.looked;
END $$;
