-- A run that a user asks for does not hide the unfinished job of an instant. Its job was stored as the schedule's last one,
-- so once it had finished, or was replaced, the next instant ran beside the earlier job.

-- Decides instants of schedules. decisions: {"name", "revision", "next", "instants", "asked", "backfill"} each;
-- instants: the runs of `start_run` with "decided", in the order of time, and "since" for a stretch that did
-- not run. Only rows that still have that revision are changed, and a row that another session has locked
-- is skipped. Locks in the order of names. Returns the names of the schedules that were changed.
CREATE FUNCTION jobherd.tick(decisions jsonb, by text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    one     record;
    run     jsonb;
    what    text;
    overlap text;
    live    boolean;
    started bigint;
    latest  bigint;
    waiting jsonb;
    decided_at timestamptz;
BEGIN
    FOR one IN
        SELECT s.name, s.kind, s.options, s.last_at, s.last_job, s.held, d.next, d.instants, d.asked, d.backfill
          FROM jsonb_to_recordset(decisions) AS d (name text, revision bigint, next timestamptz, instants jsonb,
                                                   asked timestamptz[], backfill jsonb)
          JOIN jobherd.schedules s ON s.name = d.name AND s.revision = d.revision
         ORDER BY s.name
           FOR UPDATE OF s SKIP LOCKED
    LOOP
        overlap := coalesce(one.options ->> 'overlap', 'allow');
        -- A statement that begins after the lock was had: a worker may just have finished the job.
        live := overlap <> 'allow' AND (one.held IS NOT NULL OR jobherd.is_unfinished(one.last_job));
        latest := one.last_job;
        waiting := one.held;
        decided_at := one.last_at;
        FOR run IN SELECT i.value FROM jsonb_array_elements(one.instants) AS i LOOP
            what := run ->> 'decided';
            IF what IN ('manual', 'backfilled') THEN
                started := jobherd.start_run(one.name, one.kind, one.options, run, what, by);
                IF what = 'manual' AND NOT live THEN
                    latest := coalesce(started, latest);
                    live := overlap <> 'allow';
                END IF;
                CONTINUE;
            END IF;
            decided_at := (run ->> 'at')::timestamptz;
            IF what = 'ran' AND live AND overlap = 'replace' AND waiting IS NULL THEN
                PERFORM jobherd.cancel_as(latest, 'schedule ' || one.name, 'the next run replaces it');
                live := jobherd.is_unfinished(latest);  -- a waiting job is canceled at once
            END IF;
            IF what = 'ran' AND NOT live THEN
                started := jobherd.start_run(one.name, one.kind, one.options, run, 'ran', by);
                latest := coalesce(started, latest);
                live := overlap <> 'allow';
                CONTINUE;
            ELSIF what = 'ran' AND overlap = 'skip' THEN
                what := 'overlapped';
            ELSIF what = 'ran' AND overlap = 'queue' AND waiting IS NOT NULL THEN
                what := 'merged';
                waiting := jsonb_set(waiting, '{missed}', to_jsonb((waiting ->> 'missed')::bigint + 1
                                                                   + (run ->> 'missed')::bigint));
            ELSIF what = 'ran' THEN
                what := 'held';
                IF waiting IS NOT NULL THEN  -- replace: the newest one runs
                    UPDATE jobherd.ticks t SET decided = 'merged'
                     WHERE t.schedule = one.name AND t.at = (waiting ->> 'at')::timestamptz AND t.job IS NULL;
                    run := jsonb_set(run, '{missed}', to_jsonb((run ->> 'missed')::bigint + 1
                                                               + (waiting ->> 'missed')::bigint));
                END IF;
                waiting := run;
            END IF;
            INSERT INTO jobherd.ticks (schedule, at, since, decided, missed, because, by)
            VALUES (one.name, decided_at, (run ->> 'since')::timestamptz, what, (run ->> 'missed')::bigint,
                    CASE WHEN what IN ('overlapped', 'merged', 'held') THEN latest END, by)
            ON CONFLICT ON CONSTRAINT ticks_pkey DO NOTHING;
        END LOOP;
        UPDATE jobherd.schedules s
           SET next_at = one.next, last_at = decided_at, last_job = latest, held = waiting, revision = s.revision + 1,
               asked = ARRAY(SELECT a FROM unnest(s.asked) AS a WHERE a <> ALL (coalesce(one.asked, '{}'))),
               backfill = one.backfill
         WHERE s.name = one.name;
        RETURN NEXT one.name;
    END LOOP;
END $$;
