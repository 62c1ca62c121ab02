-- A request to cancel a running job is a row of its own, and no longer written into the row of the claim. That row is what a settlement,
-- a release and a reclaim lock: while the transaction of the caller stayed open, they all waited for it, and one caller could stop a fleet.
-- Now cancel() locks nothing that a supervisor, worker or maintenance process needs.
--
-- The parent finds the requests about its own running jobs (find_cancels.sql). A settlement or release that returns a job to the queue
-- ends the job instead if it sees a request. A request that is committed after that is applied by the maintenance process
-- (apply_cancels.sql), which also deletes requests about finished jobs. A retry by hand deletes the request: it was about the earlier run.
-- tests/models/cancel.pml checks the protocol.
--
-- The key has the time in it so that two callers never wait for each other: with the job alone, the second insert would.
CREATE TABLE jobherd.cancels (
    job      bigint NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, asked_at)
);
ALTER TABLE jobherd.cancels SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

INSERT INTO jobherd.cancels (job) SELECT DISTINCT c.job FROM jobherd.running r CROSS JOIN LATERAL unnest(r.cancelled) AS c (job);
ALTER TABLE jobherd.running DROP COLUMN cancelled;

CREATE OR REPLACE FUNCTION jobherd.cancel_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.cancel_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH waiting AS (
            DELETE FROM jobherd.ready WHERE id = job_id RETURNING *
        ), later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        ), gone AS (
            SELECT * FROM waiting UNION ALL SELECT * FROM later
        )
        INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, max_attempts, crashes,
                                     state, queue, kind, payload, extras, timeout, error_code, error)
        SELECT g.id, g.created_at, g.run_at, clock_timestamp(), (now() AT TIME ZONE 'UTC')::date + coalesce(k.keep_failed, 30), g.priority, g.attempts,
               g.max_attempts, g.crashes, 'cancelled', g.queue, g.kind, g.payload, g.extras, g.timeout, 'JOB_CANCELLED', 'cancelled while it waited'
          FROM gone g LEFT JOIN jobherd.kinds k ON k.name = g.kind
        RETURNING state INTO answer;
        IF answer IS NOT NULL THEN
            did := true;
            PERFORM jobherd.notify('jobherd_done', 'jobherd.' || ' ' || job_id || '=' || answer);
        ELSE
            -- The claim is found through its jobs: running is as small as the fleet. Its row is not locked.
            IF EXISTS (SELECT FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE j.id = job_id) THEN
                INSERT INTO jobherd.cancels (job)
                SELECT job_id WHERE NOT EXISTS (SELECT FROM jobherd.cancels x WHERE x.job = job_id)
                ON CONFLICT DO NOTHING;
                did := true;
                answer := 'cancelling';
                PERFORM jobherd.notify('jobherd_jobs', '@cancel');
            END IF;
        END IF;
        IF answer IS NULL THEN
            SELECT state INTO answer FROM jobherd.history WHERE id = job_id ORDER BY finished_at DESC LIMIT 1;
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'cancel', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;

CREATE OR REPLACE FUNCTION jobherd.retry_as(job_id bigint, actor text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    answer text;
    did    boolean := false;
BEGIN
    IF jobherd.is_confined() THEN
        RETURN jobherd.retry_own(job_id);
    END IF;
    FOR look IN 1..3 LOOP
        WITH later AS (
            DELETE FROM jobherd.scheduled WHERE id = job_id RETURNING *
        )
        INSERT INTO jobherd.ready
        SELECT id, created_at, now(), good_until, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras
          FROM later
        RETURNING 'ready' INTO answer;
        IF answer IS NULL THEN
            WITH over AS (
                DELETE FROM jobherd.history WHERE id = job_id RETURNING *
            ), past AS (
                INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback,
                                              ran_on, usage, post_mortem)
                SELECT id, token, attempts, state, started_at, finished_at,
                       (now() AT TIME ZONE 'UTC')::date + coalesce((SELECT k.keep_failed FROM jobherd.kinds k WHERE k.name = over.kind), 30), error_code, error, traceback,
                       ran_on, usage,
                       post_mortem
                  FROM over
            )
            INSERT INTO jobherd.ready (id, created_at, run_at, timeout, last_error, priority, max_attempts, queue, kind, payload, extras)
            SELECT id, created_at, now(), timeout, nullif(jsonb_strip_nulls(jsonb_build_object('code', error_code, 'message', error)), '{}'),
                   priority, max_attempts, queue, kind, payload, extras
              FROM over
            RETURNING 'ready' INTO answer;
        END IF;
        did := answer IS NOT NULL;
        IF did THEN
            DELETE FROM jobherd.cancels WHERE job = job_id;  -- a request about the run before this retry
        END IF;
        IF answer IS NULL THEN
            SELECT 'ready' INTO answer FROM jobherd.ready WHERE id = job_id;
        END IF;
        IF answer IS NULL THEN
            SELECT 'running' INTO answer FROM jobherd.running r WHERE EXISTS (SELECT FROM unnest(r.jobs) AS j WHERE j.id = job_id);
        END IF;
        EXIT WHEN answer IS NOT NULL;
    END LOOP;
    IF did THEN
        PERFORM jobherd.note_unless_noted(actor, 'retry', jsonb_build_object('job', job_id), reason);
    END IF;
    RETURN answer;
END $$;
