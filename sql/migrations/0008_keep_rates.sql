-- What removes a pause or a concurrency limit leaves the rate limit of the same queue or kind. The functions are those
-- of the baseline, and delete the row of `gates` only if it has no rate.

CREATE OR REPLACE FUNCTION jobherd.resume(
    queue text DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL, reason text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    gate record;
    did  boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('resume', queue, kind);
    -- no other session changes its limit now
    PERFORM FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    UPDATE jobherd.gates g SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL
     WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NOT NULL
       AND (g.max_running IS NOT NULL OR g.rate IS NOT NULL);
    did := FOUND;
    IF NOT did THEN
        DELETE FROM jobherd.gates g
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NULL AND g.rate IS NULL;
        did := FOUND;
    END IF;
    IF did THEN
        PERFORM jobherd.note_unless_noted(resume.actor, 'resume', jobherd.gate_as_target(gate.scope, gate.name),
                                          resume.reason);
    END IF;
    RETURN did;
END $$;

CREATE OR REPLACE FUNCTION jobherd.set_limit(
    queue text DEFAULT NULL, max_running integer DEFAULT NULL, kind text DEFAULT NULL, actor text DEFAULT NULL
)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    gate   record;
    before integer;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('set_limit', queue, kind);
    IF gate.scope = 'all' THEN
        RAISE EXCEPTION 'jobherd.set_limit: everything together has no limit'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Limit a queue or a kind, or start fewer workers.';
    ELSIF set_limit.max_running < 1 THEN
        RAISE EXCEPTION 'jobherd.set_limit: max_running % is not a number from 1', set_limit.max_running
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'To let nothing run, pause it: SELECT jobherd.pause(...).';
    END IF;
    SELECT g.max_running INTO before FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;
    IF set_limit.max_running IS NOT NULL THEN
        INSERT INTO jobherd.gates AS g (scope, name, max_running, limited_at, limited_by)
        VALUES (gate.scope, gate.name, set_limit.max_running, clock_timestamp(), coalesce(actor, session_user))
        ON CONFLICT ON CONSTRAINT gates_pkey DO UPDATE
           SET max_running = excluded.max_running, limited_at = coalesce(g.limited_at, excluded.limited_at),
               limited_by = excluded.limited_by;
    ELSE
        UPDATE jobherd.gates g SET max_running = NULL, limited_at = NULL, limited_by = NULL
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NOT NULL
           AND (g.paused_at IS NOT NULL OR g.rate IS NOT NULL);
        DELETE FROM jobherd.gates g
         WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NULL AND g.rate IS NULL;
    END IF;
    IF set_limit.max_running IS DISTINCT FROM before THEN
        PERFORM jobherd.note_unless_noted(set_limit.actor, 'limit',
            jobherd.gate_as_target(gate.scope, gate.name)
                || jsonb_build_object('max_running', set_limit.max_running, 'before', before), NULL);
    END IF;
    RETURN before;
END $$;
-- Trigger, before a gate is deleted: what removes a concurrency limit leaves the rate. A worker of an earlier
-- version that no longer declares a limit deletes the whole row.
CREATE FUNCTION jobherd.keep_rate()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE jobherd.gates g
       SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL, max_running = NULL, limited_at = NULL,
           limited_by = NULL
     WHERE g.scope = OLD.scope AND g.name = OLD.name;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_rate BEFORE DELETE ON jobherd.gates FOR EACH ROW
    WHEN (OLD.rate IS NOT NULL AND (OLD.max_running IS NOT NULL OR OLD.paused_at IS NOT NULL))
    EXECUTE FUNCTION jobherd.keep_rate();
