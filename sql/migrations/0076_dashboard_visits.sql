-- Logins, logouts and wrong tokens of a dashboard get into the audit log whatever its role may do otherwise. A dashboard that serves view tokens as jobherd_work could enter
-- none of them: only jobherd_admin may call note_audit.
CREATE FUNCTION jobherd.note_visit(actor text, action text, target jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF (note_visit.actor LIKE 'page:%' AND note_visit.action IN ('log in', 'log out', 'refuse login', 'limit logins')) IS NOT TRUE THEN
        RAISE EXCEPTION 'jobherd.note_visit: % is not a visit of the dashboard', quote_nullable(left(note_visit.action, 100))
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN jobherd.note_audit(note_visit.actor, note_visit.action, note_visit.target);
END $$;
