-- That something is noted as a part of something larger is believed of those who may write such a note. A setting can be made by everybody: a tenant
-- cancelled and retried jobs of its own, and the audit had no word of it.
CREATE OR REPLACE FUNCTION jobherd.note_unless_noted(actor text, action text, target jsonb, reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF current_setting('jobherd.noted', true) = 'yes'
       AND has_function_privilege(coalesce(nullif(current_setting('role', true), 'none'), session_user)::name,
                                  'jobherd.note_audit(text, text, jsonb, text)', 'EXECUTE') THEN
        RETURN;
    END IF;
    INSERT INTO jobherd.audit (actor, role, action, target, reason)
    VALUES (left(coalesce(nullif(note_unless_noted.actor, ''), session_user), 200), session_user, note_unless_noted.action,
            note_unless_noted.target, left(nullif(note_unless_noted.reason, ''), 2000));
END $$;
