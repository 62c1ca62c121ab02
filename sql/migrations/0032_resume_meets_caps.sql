-- Who resumes while somebody sets a cap resumes: the row was no row with a cap when the one statement looked, and was one when the other had
-- waited for it. Neither matched, and what was answered is that nothing was paused.
CREATE OR REPLACE FUNCTION jobherd.resume(queue text DEFAULT NULL::text, kind text DEFAULT NULL::text, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    gate record;
    did  boolean;
BEGIN
    SELECT * INTO gate FROM jobherd.gate_of('resume', queue, kind);
    PERFORM FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name FOR UPDATE;  -- by here it has a cap, or it has none
    UPDATE jobherd.gates g SET paused_at = NULL, paused_by = NULL, reason = NULL, resume_at = NULL
     WHERE g.scope = gate.scope AND g.name = gate.name AND g.paused_at IS NOT NULL AND g.max_running IS NOT NULL;
    did := FOUND;
    IF NOT did THEN
        DELETE FROM jobherd.gates g WHERE g.scope = gate.scope AND g.name = gate.name AND g.max_running IS NULL;
        did := FOUND;
    END IF;
    IF did THEN
        PERFORM jobherd.note_unless_noted(resume.actor, 'resume', jobherd.gate_as_target(gate.scope, gate.name), resume.reason);
    END IF;
    RETURN did;
END $$;
